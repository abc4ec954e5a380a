"""Checkpoints in the Hugging Face layout: a directory that appears whole or not at all."""

import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def weight_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's parameters by their Hugging Face names, each stored once.

    A tied head is the embedding under a second name: safetensors refuses shared storage, and a
    loader ties it again from the configuration.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().to(torch.float32).contiguous()
    return tensors


def write_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write ``path`` as a safetensors file; a reader sees the old file or the whole new one."""
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, str(partial), metadata={"format": "pt"})
    os.replace(partial, path)


def save_checkpoint(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path
) -> None:
    """Write model, generation configuration and tokenizer so that ``transformers`` loads them.

    Everything is written beside ``directory`` and renamed into place; an interrupted save leaves
    the former checkpoint as it was.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        # save_pretrained decides on the head's presence by the configuration, as loaders do.
        model.save_pretrained(str(fresh), safe_serialization=True)
        tokenizer.save_pretrained(str(fresh))
        fresh.chmod(0o755)
        _sync_tree(fresh)
        _swap_in(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _swap_in(fresh: Path, directory: Path) -> None:
    """Rename ``fresh`` to ``directory``, moving an existing one aside first.

    A non-empty directory cannot be replaced by one rename; between the two renames the former
    checkpoint still exists under its hidden name.
    """
    former = directory.with_name(f".{directory.name}.former")
    if former.exists():
        shutil.rmtree(former)
    if directory.exists():
        os.rename(directory, former)
    os.rename(fresh, directory)
    if former.exists():
        shutil.rmtree(former)


def _sync_tree(directory: Path) -> None:
    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
