"""Codec of what the daemon and pool-keeper say to each other. Pure: bytes in, values out.

The C half, with the meaning of every field, is `kernel_helpers/include/venus_keeper_protocol.h`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

VERSION = 1
MAX_NAME = 64
BATCH = 64
MAX_ANSWER = 4096
_REQUEST = struct.Struct(f"=IIII{MAX_NAME}s")
_ANSWER = struct.Struct("=IIiIQ")
_STATE = struct.Struct("=IIIIiI")
_LISTED = struct.Struct(f"=QII{MAX_NAME}s")


class Kind(enum.IntEnum):
    """Requests."""

    HELLO = 1
    PUT = 2
    PART = 3
    COMMIT = 4
    GET = 5
    REMOVE = 6
    LIST = 7
    END = 8


class WireError(ValueError):
    """Bytes that are no answer of pool-keeper."""


@dataclass(frozen=True)
class Answer:
    """The head of an answer, and what its type adds."""

    version: int
    kind: int
    errno: int
    count: int
    value: int
    rest: bytes


@dataclass(frozen=True)
class KeeperState:
    """What a keeper says about itself."""

    entries: int
    references: int
    """Files of all entries; one that several share counts for each."""
    files: int
    """Different files, which are its open descriptors."""
    max_files: int
    pid: int


def is_name(name: str) -> bool:
    """Whether the keeper takes it."""
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    return 0 < len(name) <= MAX_NAME and name.isascii() and (plain.isalnum() or not plain)


def encode_request(kind: Kind, name: str = "", number: int = 0) -> bytes:
    """One packet."""
    return _REQUEST.pack(VERSION, kind, number, len(name), name.encode("ascii"))


def decode_answer(packet: bytes) -> Answer:
    """`WireError` for anything else."""
    if len(packet) < _ANSWER.size:
        raise WireError(f"a packet of {len(packet)} bytes")
    version, kind, errno, count, value = _ANSWER.unpack_from(packet)
    return Answer(version, kind, errno, count, value, packet[_ANSWER.size :])


def decode_state(answer: Answer) -> KeeperState:
    """Of an answer to HELLO."""
    if len(answer.rest) != _STATE.size:
        raise WireError(f"a state of {len(answer.rest)} bytes")
    return KeeperState(*_STATE.unpack(answer.rest)[:5])


def decode_page(answer: Answer) -> tuple[tuple[str, int], ...]:
    """Of an answer to LIST: names, each with its number of files."""
    if len(answer.rest) != answer.count * _LISTED.size:
        raise WireError(f"a page of {len(answer.rest)} bytes")
    return tuple(
        (name[:size].decode("ascii"), files)
        for _, files, size, name in _LISTED.iter_unpack(answer.rest)
    )
