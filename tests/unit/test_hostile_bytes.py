"""Bytes that a sandbox, or whoever stands in its init's place, chooses: understood or refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.init_protocol import (
    ProtocolError,
    RecordDecoder,
    WatchDecoder,
    decode_failed_path,
    decode_file_error,
    decode_packet,
)
from sandboxd.init_protocol.numbers import HEADER, MessageType
from sandboxd.protocol import FrameDecoder
from sandboxd.protocol import ProtocolError as FrameError

small = st.integers(min_value=0, max_value=70)
# Of what init sends; of HELLO_REPLY with a name of 4 bytes.
SIZES: dict[int, int] = {
    MessageType.HELLO_REPLY: 28,
    MessageType.STARTED: 16,
    MessageType.FAILED: 16,
    MessageType.ACK: 16,
    MessageType.ERROR: 16,
    MessageType.EXEC_INFO: 80,
    MessageType.LIST_END: 0,
    MessageType.EXITED: 56,
}


class Decoder(Protocol):
    def feed(self, data: bytes) -> Sequence[object]: ...


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """Of a true form, and of any content."""
    kind = draw(st.sampled_from([*SIZES, 0, MessageType.KILL]))
    size = SIZES.get(kind, 0) if draw(st.booleans()) else draw(small)
    payload = draw(st.binary(min_size=size, max_size=size))
    return HEADER.pack(1, kind, len(payload), draw(small)) + payload


@given(st.one_of(st.binary(max_size=200), packets()))
def test_a_packet_is_an_answer_or_refused(packet: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_packet(packet)


@given(st.binary(max_size=80))
def test_an_error_record_is_one_or_none(stderr: bytes) -> None:
    decode_file_error(stderr)
    decode_failed_path(stderr).encode()


def file_records() -> st.SearchStrategy[bytes]:
    """Most of them say how large they are."""
    layout = struct.Struct("<IHHIIIIQqQII")

    def record(kind: int, path: bytes, target: bytes, wrong: int) -> bytes:
        size = layout.size + len(path) + len(target) + wrong
        head = layout.pack(size, kind, 1, 0, 0, 0, 0, 0, -1, 0, len(path), len(target))
        return head + path + target

    return st.builds(record, st.sampled_from((1, 1, 1, 2, 3)), *_names())


def watch_events() -> st.SearchStrategy[bytes]:
    layout = struct.Struct("<IHHII")

    def event(kind: int, path: bytes, target: bytes, wrong: int) -> bytes:
        size = layout.size + len(path) + len(target) + wrong
        return layout.pack(size, kind, 1, len(path), len(target)) + path + target

    return st.builds(event, st.integers(min_value=0, max_value=8), *_names())


def _names() -> tuple[st.SearchStrategy[bytes], st.SearchStrategy[bytes], st.SearchStrategy[int]]:
    wrong = st.sampled_from((0, 0, 0, 0, 1, -1, 1 << 16))
    return st.binary(max_size=9), st.binary(max_size=9), wrong


def read(decoder: Decoder, pieces: Sequence[bytes]) -> tuple[list[object], bool]:
    """What it makes of them, and whether it refuses them in the end."""
    found: list[object] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
    except ProtocolError:
        return found, True
    return found, False


@pytest.mark.parametrize(
    ("decoder", "records"), [(RecordDecoder, file_records()), (WatchDecoder, watch_events())]
)
@given(data=st.data())
def test_records_are_the_same_in_any_pieces_or_refused(
    decoder: Callable[[], Decoder], records: st.SearchStrategy[bytes], data: st.DataObject
) -> None:
    content = b"".join(data.draw(st.lists(records, max_size=6))) + data.draw(st.binary(max_size=9))
    size = data.draw(st.integers(min_value=1, max_value=9))
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    whole, refused = read(decoder(), [content])
    by_piece, refused_too = read(decoder(), pieces)
    assert refused_too == refused
    assert by_piece == whole or (refused and by_piece[: len(whole)] == whole)


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_frames_are_understood_or_refused(pieces: list[bytes]) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(FrameError):
        for piece in pieces:
            list(decoder.feed(piece))
