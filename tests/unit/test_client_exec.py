"""The client's reading of an exec answer, and the errors that it makes of one."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.client import (
    CommandExitError,
    CommandTimeout,
    ConnectionLost,
    ExitReason,
    Output,
    VenusError,
)
from sandboxd.client._command_calls import run_command
from sandboxd.client._data import pieces
from sandboxd.client._exec import Event, ExecStream, OutputCollector, checked
from sandboxd.client.types import CommandResult, Exit, Started
from sandboxd.errors import ExecFailed, InvalidRequest
from sandboxd.protocol import (
    MAX_INLINE_STDIN_BYTES,
    FrameDecoder,
    FrameType,
    encode_frame,
    encode_json_frame,
)

CALL = run_command("sb-1", "make all")
STARTED = encode_json_frame(FrameType.STARTED, {"exec_id": 3, "pid": 42})


def exit_frame(**fields: Any) -> bytes:
    return encode_json_frame(
        FrameType.EXIT, {"exit_code": 0, "signal": None, "reason": "exited", **fields}
    )


def result(**fields: Any) -> CommandResult:
    given = {"exit_code": 0, "signal": None, "reason": "exited", **fields}
    return CommandResult(b"out", b"first\nlast words\n", Exit.from_json(given))


def events(*chunks: bytes) -> list[Event]:
    stream = ExecStream(CALL)
    found = [event for chunk in chunks for event in stream.feed(chunk)]
    stream.end()
    return found


def test_a_whole_answer() -> None:
    answer = STARTED + encode_frame(FrameType.STDOUT, b"hi") + exit_frame(new_field_of_later=1)
    started, output, exit_ = events(answer)
    assert started == Started(3, 42)
    assert output == Output("stdout", b"hi")
    assert isinstance(exit_, Exit)
    assert exit_.reason is ExitReason.EXITED


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        STARTED,
        STARTED + encode_frame(FrameType.STDOUT, b"hi"),
        STARTED + exit_frame()[:-1],
        STARTED + exit_frame() + b"\0",
    ],
    ids=["nothing", "started", "output", "exit cut", "more after exit"],
)
def test_a_cut_answer_is_never_a_result(answer: bytes) -> None:
    with pytest.raises(ConnectionLost):
        events(answer)


@pytest.mark.parametrize(
    "answer",
    [
        STARTED + STARTED,
        STARTED + exit_frame() + encode_frame(FrameType.STDOUT, b"x"),
        STARTED + encode_json_frame(FrameType.HEADER, {}),
        encode_frame(FrameType.STDOUT, b"x"),
        exit_frame(),
    ],
    ids=["started twice", "output after exit", "a request's frame", "output first", "exit first"],
)
def test_an_answer_out_of_order_is_refused(answer: bytes) -> None:
    with pytest.raises(ConnectionLost):
        events(answer)


def test_an_error_frame_raises_the_class_that_its_code_names() -> None:
    error = ExecFailed("no such program", operation="exec", object="/bin/nope", cause="ENOENT")
    with pytest.raises(ExecFailed) as raised:
        events(encode_json_frame(FrameType.ERROR, error.to_json()))
    assert str(raised.value) == str(error)


def test_a_character_cut_between_pieces_reaches_the_callback_whole() -> None:
    collector = OutputCollector()
    euro = "€".encode()
    texts = [collector.add(Output("stdout", piece)) for piece in (euro[:1], euro[1:], euro[:2])]
    assert [*texts, collector.finish("stdout")] == ["", "€", "", "\N{REPLACEMENT CHARACTER}"]
    assert collector.result(Exit(0, None, ExitReason.EXITED)).stdout_bytes == euro + euro[:2]


def test_a_good_end_is_returned_and_a_bad_one_raised() -> None:
    assert checked(result(), CALL, timeout_s=1, check=True).ok
    with pytest.raises(
        CommandExitError, match=r"run make all: .*exit code 3: last words"
    ) as raised:
        checked(result(exit_code=3), CALL, timeout_s=1, check=True)
    assert raised.value.exit_code == 3
    assert raised.value.stdout == "out"
    assert checked(result(exit_code=3), CALL, timeout_s=1, check=False).exit_code == 3


def test_an_out_of_memory_kill_says_so() -> None:
    killed = result(exit_code=None, signal=9, reason="oom")
    assert killed.exit_code == 137
    with pytest.raises(CommandExitError, match=r"signal 9 \(oom\)"):
        checked(killed, CALL, timeout_s=1, check=True)


def test_a_timeout_is_also_pythons_own() -> None:
    late = result(exit_code=None, signal=9, reason="timeout")
    with pytest.raises(TimeoutError) as raised:
        checked(late, CALL, timeout_s=2.5, check=True)
    assert isinstance(raised.value, CommandTimeout)
    assert isinstance(raised.value, VenusError)
    assert "2.5 s" in str(raised.value)
    assert raised.value.result is late


def test_a_string_is_a_shell_line_and_a_sequence_is_not() -> None:
    def header(command: str | list[str]) -> dict[str, Any]:
        [frame] = FrameDecoder().feed(run_command("sb-1", command).body)
        return frame.json()

    assert header("a | b") == {"command": "a | b", "stdin": "null"}
    assert header(["a", "| b"]) == {"argv": ["a", "| b"], "stdin": "null"}


def test_inline_input_is_bounded() -> None:
    with pytest.raises(InvalidRequest):
        run_command("sb-1", "cat", inline_stdin=bytes(MAX_INLINE_STDIN_BYTES + 1))


def test_names_are_quoted_into_the_target() -> None:
    assert run_command("../images/x", "true").target == "/v1/sandboxes/..%2Fimages%2Fx/exec"


def test_no_piece_is_empty_because_that_would_end_a_chunked_body() -> None:
    assert list(pieces(iter([b"a", b"", b"b"]))) == [b"a", b"b"]
    assert list(pieces(b"")) == []


def test_text_sources_are_refused() -> None:
    with pytest.raises(TypeError, match="open it with 'b'"):
        list(pieces(iter(["text"])))  # type: ignore[arg-type]
