"""Frames: whatever the chunks, the same bytes come out; whatever the bytes, memory is bounded."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.protocol import (
    DATA_TYPES,
    MAX_CONTROL_BYTES,
    MAX_DATA_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    ProtocolError,
    encode_frame,
    encode_json_frame,
)


def decode(stream: bytes, cuts: list[int]) -> list[Frame]:
    """All frames, with neighbouring pieces of one data frame joined where no frame lies between."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        frames += decoder.feed(stream[start:end])
    assert not decoder.mid_frame
    return frames


def joined(frames: list[Frame]) -> list[tuple[FrameType, bytes]]:
    result: list[tuple[FrameType, bytes]] = []
    for frame in frames:
        if result and frame.type in DATA_TYPES and result[-1][0] is frame.type:
            result[-1] = (frame.type, result[-1][1] + frame.payload)
        else:
            result.append((frame.type, frame.payload))
    return result


any_frame = st.tuples(st.sampled_from(FrameType), st.binary(max_size=200))


@given(st.lists(any_frame, max_size=8), st.lists(st.integers(min_value=0), max_size=20))
def test_frames_survive_any_chunking(
    frames: list[tuple[FrameType, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(*frame) for frame in frames)
    expected = [Frame(*frame) for frame in frames]
    assert joined(decode(stream, cuts)) == joined(expected)


def test_a_data_frame_is_handed_on_before_it_is_complete() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(FrameType.STDOUT, b"abcdef")
    assert [f.payload for f in decoder.feed(stream[:11])] == [b"abc"]
    assert decoder.mid_frame
    assert [f.payload for f in decoder.feed(stream[11:])] == [b"def"]
    assert not decoder.mid_frame


def test_an_empty_data_frame_is_one_empty_piece() -> None:
    assert decode(encode_frame(FrameType.STDIN, b""), []) == [Frame(FrameType.STDIN, b"")]


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<BxxxI", 99, 0),
        struct.pack("<BBxxI", FrameType.STDOUT, 1, 0),
        struct.pack("<BxxxI", FrameType.EXIT, MAX_CONTROL_BYTES + 1),
        struct.pack("<BxxxI", FrameType.STDOUT, MAX_DATA_BYTES + 1),
    ],
)
def test_a_header_that_no_peer_may_send_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameDecoder().feed(header))


def test_a_frame_above_the_bound_is_not_encoded() -> None:
    with pytest.raises(ProtocolError):
        encode_frame(FrameType.EXIT, bytes(MAX_CONTROL_BYTES + 1))


@pytest.mark.parametrize("payload", [b"\xff", b"{", b"[1]", b"null"])
def test_a_control_frame_must_hold_a_json_object(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Frame(FrameType.EXIT, payload).json()


def test_json_frames_round_trip() -> None:
    [frame] = FrameDecoder().feed(encode_json_frame(FrameType.STARTED, {"pid": 7}))
    assert frame.json() == {"pid": 7}
