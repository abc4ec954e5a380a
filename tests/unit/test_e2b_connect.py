"""The Connect protocol's frames and codecs, also against hostile bytes."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.e2b import connect
from sandboxd.e2b.connect import Code, Codec, ConnectError, EnvelopeDecoder
from sandboxd.e2b.proto import process_pb2 as wire

START = wire.StartRequest(
    process=wire.ProcessConfig(cmd="/bin/bash", args=["-c", "x"], envs={"A": "ü"}, cwd="/"),
    tag="t",
    stdin=False,
)


@pytest.mark.parametrize("codec", list(Codec))
def test_messages_come_back_as_they_were(codec: Codec) -> None:
    assert codec.decode(codec.encode(START), wire.StartRequest) == START
    assert codec.decode(codec.encode(wire.ListRequest()), wire.ListRequest) == wire.ListRequest()


def test_json_is_as_the_wire_has_it() -> None:
    event = wire.ProcessEvent(end=wire.ProcessEvent.EndEvent(exit_code=-1, status="s"))
    written = json.loads(Codec.JSON.encode(wire.StartResponse(event=event)))
    assert written == {"event": {"end": {"exitCode": -1, "status": "s"}}}
    read = Codec.JSON.decode(
        b'{"process":{"pid":7},"signal":"SIGNAL_SIGKILL","new":1}', wire.SendSignalRequest
    )
    assert (read.process.pid, read.signal) == (7, wire.SIGNAL_SIGKILL)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b"null",
        b"{",
        b"\xff",
        b'{"process":1}',
        b'{"process":{"pid":"x"}}',
        b'{"process":{"pid":-1}}',
        b"[" * 100_000,
        b'{"process":' * 100_000,
    ],
)
def test_json_that_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ConnectError) as caught:
        Codec.JSON.decode(data, wire.SendSignalRequest)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert len(caught.value.message) < 400


@given(st.binary(max_size=200), st.sampled_from(list(Codec)))
def test_any_bytes_are_a_message_or_refused(data: bytes, codec: Codec) -> None:
    try:
        codec.decode(data, wire.StartRequest)
    except ConnectError as error:
        assert error.code is Code.INVALID_ARGUMENT
        json.dumps(error.to_json()).encode()


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(min_value=1, max_value=9))
def test_envelopes_in_pieces_of_any_size(messages: list[bytes], size: int) -> None:
    stream = b"".join(struct.pack(">BI", 0, len(each)) + each for each in messages)
    decoder = EnvelopeDecoder()
    found: list[bytes] = []
    for at in range(0, len(stream), size):
        found += decoder.feed(stream[at : at + size])
    assert found == messages
    assert not decoder.mid_message


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_any_stream_is_messages_or_refused(pieces: list[bytes]) -> None:
    decoder = EnvelopeDecoder(max_message_bytes=64)
    try:
        for piece in pieces:
            for message in decoder.feed(piece):
                assert len(message) <= 64
    except ConnectError:
        pass


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ((1, 0), Code.INTERNAL),
        ((2, 0), Code.INVALID_ARGUMENT),
        ((0x80, 0), Code.INVALID_ARGUMENT),
        ((0, connect.MAX_MESSAGE_BYTES + 1), Code.RESOURCE_EXHAUSTED),
        ((0, 0xFFFFFFFF), Code.RESOURCE_EXHAUSTED),
    ],
)
def test_a_hostile_head_is_refused_before_its_message_comes(
    head: tuple[int, int], code: Code
) -> None:
    with pytest.raises(ConnectError) as caught:
        list(EnvelopeDecoder().feed(struct.pack(">BI", *head)))
    assert caught.value.code is code


def test_a_stream_that_is_cut_is_known() -> None:
    decoder = EnvelopeDecoder()
    assert list(decoder.feed(b"\0\0\0\0\3ab")) == []
    assert decoder.mid_message
    assert list(decoder.feed(b"c\0")) == [b"abc"]
    assert decoder.mid_message


def test_the_last_envelope_tells_of_an_error() -> None:
    plain = connect.last_envelope(None)
    assert plain == struct.pack(">BI", 2, 2) + b"{}"
    told = connect.last_envelope(ConnectError(Code.NOT_FOUND, "no \udc80 such"))
    assert json.loads(told[5:]) == {"error": {"code": "not_found", "message": "no \\udc80 such"}}


@pytest.mark.parametrize(
    ("kind", "stream", "codec"),
    [
        ("application/json", False, Codec.JSON),
        ("Application/JSON; charset=utf-8", False, Codec.JSON),
        ("application/proto", False, Codec.PROTO),
        ("application/connect+json", True, Codec.JSON),
        ("application/connect+proto", True, Codec.PROTO),
        ("application/json", True, None),
        ("application/connect+json", False, None),
        ("application/grpc", False, None),
        ("", False, None),
    ],
)
def test_the_content_type_names_the_codec(kind: str, stream: bool, codec: Codec | None) -> None:
    assert connect.codec_of(kind, stream=stream) is codec


def test_timeouts() -> None:
    assert connect.timeout_s(None) is None
    assert connect.timeout_s("") is None
    assert connect.timeout_s("0") is None
    assert connect.timeout_s("1500") == 1.5
    for wrong in ("-1", "1.5", "x", "1" * 11, "\u0663"):
        with pytest.raises(ConnectError):
            connect.timeout_s(wrong)


def test_compression_is_refused() -> None:
    connect.check_compression("")
    connect.check_compression("identity")
    with pytest.raises(ConnectError, match="gzip"):
        connect.check_compression("gzip")
