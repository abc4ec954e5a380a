"""The trainer's side of pushing weights into a running engine.

Each version is a directory ``version-N`` holding ``model.safetensors``, written whole before its
path is handed on. Only the newest few stay: an engine reads a version once, when it is pushed.
"""

import shutil
from pathlib import Path

from torch import Tensor

from venusrl.train.checkpoint import write_weights

WEIGHTS_FILE = "model.safetensors"


class WeightPublisher:
    """Writes numbered weight versions below one directory."""

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"publish weights below {directory}: keep is {keep}, must be >= 1")
        self._directory = directory
        self._keep = keep
        self._published: list[Path] = []

    def publish(self, tensors: dict[str, Tensor], version: int) -> Path:
        """Write ``version`` and return its directory, ready to be read by an engine."""
        target = self._directory / f"version-{version}"
        target.mkdir(parents=True, exist_ok=True)
        write_weights(tensors, target / WEIGHTS_FILE)
        if target not in self._published:
            self._published.append(target)
        while len(self._published) > self._keep:
            shutil.rmtree(self._published.pop(0))
        return target

    def close(self) -> None:
        """Remove every version still there."""
        while self._published:
            shutil.rmtree(self._published.pop())
