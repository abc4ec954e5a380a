"""Commands through the synchronous client, against a real daemon."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from sandboxd.client import (
    CommandExitError,
    CommandTimeout,
    ExitReason,
    Output,
    Sandbox,
)
from sandboxd.errors import ExecFailed, InvalidRequest
from tests.support.daemon import DaemonProcess


def test_output_and_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert result.reason is ExitReason.EXITED
    assert not result.truncated
    assert result.exit.stdout_bytes == 4
    assert result.duration_s > 0


def test_a_failing_command_raises_with_its_output(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitError, match="exit code 7: no luck") as raised:
        sandbox.commands.run("echo some; echo no luck >&2; exit 7")
    assert (raised.value.exit_code, raised.value.stdout) == (7, "some\n")
    assert sandbox.commands.run("exit 7", check=False).exit_code == 7


def test_a_signal_is_told_apart_from_an_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("kill -TERM $$", check=False)
    assert result.reason is ExitReason.SIGNALED
    assert (result.exit.exit_code, result.signal, result.exit_code) == (None, 15, 143)


def test_an_argument_vector_is_no_shell_line(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["echo", "$HOME; *", "a b"]).stdout == "$HOME; * a b\n"


def test_environment_directory_and_user(sandbox: Sandbox) -> None:
    run = sandbox.commands.run
    assert run("echo $A-$B", envs={"A": "1", "B": "ä =x"}).stdout == "1-ä =x\n"
    assert run("pwd", cwd="/usr").stdout == "/usr\n"
    assert run("id -u; id -g", user="1000:1001").stdout == "1000\n1001\n"
    assert run("id -un", user="daemon").stdout == "daemon\n"


def test_the_sandbox_has_defaults_that_a_command_may_override(daemon: DaemonProcess) -> None:
    with Sandbox.create(
        envs={"A": "sandbox", "B": "sandbox"}, cwd="/usr", user="nobody", socket=daemon.socket
    ) as sandbox:
        line = "echo $A $B; pwd; id -un"
        assert sandbox.commands.run(line).stdout == "sandbox sandbox\n/usr\nnobody\n"
        overridden = sandbox.commands.run(line, envs={"B": "own"}, cwd="/", user="root")
        assert overridden.stdout == "sandbox own\n/\nroot\n"


def test_output_is_exact_bytes(sandbox: Sandbox) -> None:
    data = os.urandom(3_000_000) + bytes(range(256))
    sandbox.files.write("/root/data", data)
    result = sandbox.commands.run("cat data; cat data >&2")
    assert result.stdout_bytes == data
    assert result.stderr_bytes == data


def test_output_arrives_while_the_command_runs(sandbox: Sandbox) -> None:
    # The command goes on only once its first line has been seen, so a client that collects
    # everything first would run into the timeout.
    texts = []

    def seen(text: str) -> None:
        texts.append(text)
        if "ready" in text:
            sandbox.files.write("/tmp/go", b"")

    script = "echo ready; until [ -e /tmp/go ]; do sleep 0.01; done; echo done; echo e >&2"
    errors: list[str] = []
    result = sandbox.commands.run(script, on_stdout=seen, on_stderr=errors.append, timeout=20)
    assert "".join(texts) == "ready\ndone\n" == result.stdout
    assert errors == ["e\n"]


def test_more_output_than_asked_for_is_cut_and_said_to_be(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 100000 /dev/zero", max_output_bytes=1000)
    assert result.stdout_bytes == bytes(1000)
    assert result.truncated
    assert result.exit.stdout_bytes == 100000


def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(sandbox: Sandbox) -> None:
    # The child is in a session of its own and holds the pipe.
    with pytest.raises(CommandTimeout, match=r"timeout of 0\.5 s") as raised:
        sandbox.commands.run("echo before; setsid sleep 300 & sleep 300", timeout=0.5)
    assert raised.value.result.stdout == "before\n"
    assert raised.value.result.reason is ExitReason.TIMEOUT
    assert sandbox.commands.run("pgrep sleep || true").stdout == ""


def test_a_background_child_does_not_hold_the_call(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("sleep 300 & echo started", timeout=20)
    assert result.stdout == "started\n"
    # It lives on; until it has executed sleep it still goes by the shell's name.
    until = "until pgrep -x sleep; do sleep 0.05; done"
    assert sandbox.commands.run(until, timeout=20).stdout.count("\n") == 1


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_input_reaches_the_command_whole(sandbox: Sandbox, size: int) -> None:
    data = os.urandom(size)
    assert sandbox.commands.run("cat", stdin=data).stdout_bytes == data


def test_without_input_the_command_reads_end_of_file(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("wc -c").stdout.strip() == "0"


def test_32_mib_go_through_cat_both_ways_at_once(sandbox: Sandbox) -> None:
    chunk = os.urandom(1 << 20)
    sent = hashlib.sha256()

    def source() -> Iterator[bytes]:
        for _ in range(32):
            sent.update(chunk)
            yield chunk

    result = sandbox.commands.run("cat", stdin=source())
    assert len(result.stdout_bytes) == 32 << 20
    assert hashlib.sha256(result.stdout_bytes).digest() == sent.digest()


def test_input_from_a_file(sandbox: Sandbox) -> None:
    data = os.urandom(5_000_000)
    assert sandbox.commands.run("cat", stdin=io.BytesIO(data)).stdout_bytes == data


def test_a_command_that_reads_little_of_its_input_ends_normally(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 3", stdin=b"abc" + bytes(8 << 20))
    assert result.stdout_bytes == b"abc"


def test_a_source_that_fails_kills_the_command(sandbox: Sandbox) -> None:
    def source() -> Iterator[bytes]:
        yield b"first half"
        raise RuntimeError("the disk is gone")

    # `cat` alone could not tell this from the end of its input.
    with pytest.raises(RuntimeError, match="the disk is gone"):
        sandbox.commands.run("cat > /root/copy; touch /root/complete", stdin=source())
    assert not sandbox.files.exists("/root/complete")


def test_a_handle_streams_input_and_output(sandbox: Sandbox) -> None:
    with sandbox.commands.run(["cat"], True, stdin=True) as handle:
        assert handle.pid > 0
        output = iter(handle)
        for text in (b"one\n", b"two\n"):
            handle.send_stdin(text)
            assert next(output) == Output("stdout", text)
        handle.close_stdin()
        assert handle.wait().exit_code == 0


def test_a_handle_signals_and_kills(sandbox: Sandbox) -> None:
    with sandbox.commands.run(
        "trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done", True
    ) as handle:
        next(iter(handle))
        handle.send_signal(signal.SIGTERM)
        assert handle.wait(check=False).exit_code == 5
    with sandbox.commands.run("sleep 300 & wait", True) as handle:
        handle.kill()
        assert handle.wait(check=False).reason is ExitReason.KILLED
    assert sandbox.commands.run("pgrep sleep || true").stdout == ""


def test_leaving_a_handle_ends_the_command(sandbox: Sandbox) -> None:
    # The FIFO's other end is opened by the command; once the command is gone, a reader sees the
    # end of file, and that event is what this test waits for.
    sandbox.commands.run("mkfifo /tmp/alive")
    with sandbox.commands.run("exec 3>/tmp/alive; echo up; sleep 300", True) as handle:
        waiter = threading.Thread(
            target=sandbox.commands.run, args=("cat /tmp/alive",), kwargs={"timeout": 20}
        )
        waiter.start()
        next(iter(handle))
    waiter.join(20)
    assert not waiter.is_alive()
    assert sandbox.commands.run("pgrep sleep || true").stdout == ""


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        (["/no/such"], {}, ["exec", "ENOENT"]),
        (["/etc/passwd"], {}, ["EACCES"]),
        (["true"], {"cwd": "/no/such"}, ["directory", "ENOENT"]),
        (["true"], {"user": "nosuchuser"}, ["user"]),
    ],
)
def test_what_cannot_start_says_at_which_step_and_why(
    sandbox: Sandbox, argv: list[str], options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ExecFailed) as raised:
        sandbox.commands.run(argv, cwd=options.get("cwd"), user=options.get("user"))
    for word in words:
        assert word in str(raised.value)


def test_a_refused_request_names_the_field(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="cwd"):
        sandbox.commands.run("true", cwd="relative")


def test_the_memory_limit_is_reported_as_oom(daemon: DaemonProcess) -> None:
    with Sandbox.create(memory_bytes=64 << 20, socket=daemon.socket) as sandbox:
        with pytest.raises(CommandExitError, match="oom"):
            sandbox.commands.run(["python3", "-c", "x = bytearray(256 << 20)"])
        assert sandbox.metrics().oom_kills >= 1
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
