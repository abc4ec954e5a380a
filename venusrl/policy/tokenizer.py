"""The policy's own tokenizer: one token per byte, plus whole tokens for fixed fragments.

Names, numbers and file contents must be *copied* from the prompt or from an observation, also
those never seen in training; as single bytes, copying is the same operation for every name.
The words of the prompt templates and of the shell carry no such information, so each of them is
one token, with or without the blank before it, and commands stay short.

Invariants (tests/unit/test_policy_tokenizer.py):
- every byte string has exactly one encoding, and decoding gives the same bytes back;
- no text encodes to a special token: ``<|end|>`` in a file's content is seven ordinary bytes.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import cast

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TASK = "<|task|>"
ACT = "<|act|>"
END = "<|end|>"
OBS = "<|obs|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, TASK, ACT, END, OBS)


@functools.cache
def _byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    The table is GPT-2's: printable Latin-1 stands for itself, the rest is moved above U+0100.
    """
    symbols: list[str] = []
    moved = 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(256 + moved))
            moved += 1
    return tuple(symbols)


def _to_symbols(data: bytes) -> str:
    table = _byte_symbols()
    return "".join(table[byte] for byte in data)


def _pattern(fragment: str) -> str:
    """Match ``fragment`` only as a whole word.

    Otherwise a name that happens to contain a word ("catalogue", "cat") would be cut up
    differently from its neighbours, and copying it would no longer be one uniform operation.
    """
    before = r"(?<![A-Za-z0-9_])" if re.match(r"\w", fragment) else ""
    after = r"(?![A-Za-z0-9_])" if re.search(r"\w\Z", fragment) else ""
    return before + re.escape(fragment) + after


def build_tokenizer(fragments: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make the tokenizer whose vocabulary is the bytes, ``fragments`` and the special tokens."""
    words: dict[str, None] = {}
    for fragment in fragments:
        words[fragment] = None
        if not fragment[:1].isspace():
            words[" " + fragment] = None
    # A single byte is in the vocabulary anyway.
    whole = [word for word in words if len(word.encode()) > 1]
    symbols = [*_byte_symbols(), *(_to_symbols(word.encode()) for word in whole)]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}

    # Without merges the model yields bytes; `ignore_merges` makes it take a piece that is in the
    # vocabulary whole. The split decides what such a piece is: the longest fragment that begins
    # at the leftmost place (an alternation takes its first match, hence the order).
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if whole:
        alternatives = "|".join(_pattern(word) for word in sorted(whole, key=len, reverse=True))
        split = pre_tokenizers.Split(Regex(alternatives), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[TASK, ACT, OBS],
        # Text is never special: the special tokens are placed by id (conversation.py).
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def encode_ordinary(tokenizer: PreTrainedTokenizerBase, data: str | bytes) -> list[int]:
    """Encode ``data`` without special tokens, whatever it contains.

    Bytes that are not UTF-8 become byte tokens where the vocabulary has them (ours does), and
    the replacement character elsewhere.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
    ids: list[int] = []
    for run in re.findall("[\ud800-\udfff]+|[^\ud800-\udfff]+", text):
        if "\ud800" <= run[0] <= "\udfff":
            ids.extend(_encode_stray(tokenizer, run))
        else:
            ids.extend(tokenizer.encode(run, add_special_tokens=False, split_special_tokens=True))
    return ids


def _encode_stray(tokenizer: PreTrainedTokenizerBase, run: str) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    try:
        symbols = _to_symbols(run.encode("utf-8", "surrogateescape"))
        return [vocabulary[symbol] for symbol in symbols]
    except (KeyError, UnicodeEncodeError):
        text = "\ufffd" * len(run)
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def decode_bytes(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bytes:
    """Decode ids of a byte-level tokenizer to the exact bytes; special tokens give nothing."""
    table = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    special = set(tokenizer.all_special_ids)
    ordinary = [token_id for token_id in ids if token_id not in special]
    tokens = cast(list[str], tokenizer.convert_ids_to_tokens(ordinary))
    return bytes(table[symbol] for token in tokens for symbol in token)
