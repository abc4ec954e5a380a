"""Commands, through the SDK for threads."""

from __future__ import annotations

import pytest
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)

from tests.e2b.conftest import ADD_USER


def wait_for_end_of(pid: int) -> str:
    """A command that ends once that process has ended."""
    return f"tail -s 0.01 --pid={pid} -f /dev/null"


def test_run_has_output_and_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert result.error is None
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo said; exit 3")
    assert (caught.value.exit_code, caught.value.stdout) == (3, "said\n")
    assert caught.value.error == "exit status 3"


def test_large_output_comes_whole(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("seq 500000")
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 500001))


def test_environment_and_directory(sandbox: Sandbox) -> None:
    result = sandbox.commands.run('echo "$MARK"; pwd', envs={"MARK": "a 'b'"}, cwd="/usr")
    assert result.stdout == "a 'b'\n/usr\n"
    assert sandbox.commands.run("pwd; echo $HOME").stdout == "/root\n/root\n"


def test_a_user_is_taken_on(sandbox: Sandbox) -> None:
    sandbox.commands.run(ADD_USER)
    result = sandbox.commands.run("id -un; pwd", user="user")
    assert result.stdout == "user\n/home/user\n"
    with pytest.raises(SandboxException, match="user"):
        sandbox.commands.run("true", user="nobody-has-this-name")


def test_a_directory_that_is_not_there_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException, match="working directory"):
        sandbox.commands.run("true", cwd="/no/such")


def test_background_with_callbacks(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo one; echo two >&2; exit 4", background=True)
    out: list[str] = []
    err: list[str] = []
    with pytest.raises(CommandExitException) as caught:
        handle.wait(on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err), caught.value.exit_code) == ("one\n", "two\n", 4)


def test_run_with_callbacks(sandbox: Sandbox) -> None:
    out: list[str] = []
    sandbox.commands.run("echo streamed", on_stdout=out.append)
    assert "".join(out) == "streamed\n"


def test_input_is_sent_and_closed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "first ")
    handle.send_stdin("second ")
    sandbox.commands.stream_input(handle.pid, ["third ", b"fourth"])
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "first second third fourth"


def test_large_input_comes_whole(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("md5sum", background=True, stdin=True)
    handle.send_stdin(b"x" * (4 << 20))
    handle.close_stdin()
    expected = sandbox.commands.run("head -c 4194304 /dev/zero | tr '\\0' x | md5sum").stdout
    assert handle.wait().stdout == expected


def test_without_input_there_is_none_to_send(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(SandboxException, match="input"):
        sandbox.commands.send_stdin(handle.pid, "x")
    handle.kill()


def test_commands_are_listed_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000 | cat", background=True, envs={"A": "b"}, cwd="/tmp")
    [found] = sandbox.commands.list()
    assert (found.pid, found.cmd) == (handle.pid, "/bin/bash")
    assert found.args == ["-l", "-c", "sleep 1000 | cat"]
    assert (found.envs, found.cwd) == ({"A": "b"}, "/tmp")
    assert sandbox.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.list() == []
    assert "sleep" not in sandbox.commands.run("ps -eo comm").stdout
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(handle.pid, "x")


def test_a_command_is_killed_when_its_time_is_up(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000", background=True, timeout=0.5)
    with pytest.raises(TimeoutException, match="timeout"):
        handle.wait()
    sandbox.commands.run(wait_for_end_of(handle.pid))


def test_a_command_without_a_timeout_goes_on(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    handle.close_stdin()
    assert handle.wait().exit_code == 0


def test_a_command_goes_on_without_its_client(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read line; echo $line > /tmp/got", background=True, stdin=True)
    handle.disconnect()
    assert [each.pid for each in sandbox.commands.list()] == [handle.pid]
    sandbox.commands.send_stdin(handle.pid, "late\n")
    sandbox.commands.run(wait_for_end_of(handle.pid))
    assert sandbox.files.read("/tmp/got") == "late\n"


def test_want_of_memory_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("exec tail /dev/zero")
    assert caught.value.error == "signal: killed (out of memory)"


def test_the_end_of_a_sandbox_ends_its_commands(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000", background=True)
    sandbox.kill()
    with pytest.raises(TimeoutException, match="was killed"):
        handle.wait()


def test_a_command_is_connected_to(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run(
        "echo early; read line; echo got $line; exit 6", background=True, stdin=True
    )
    assert next(iter(handle)) == ("early\n", None, None)
    first, second = (sandbox.commands.connect(handle.pid) for _ in range(2))
    assert first.pid == second.pid == handle.pid
    handle.disconnect()
    second.send_stdin("this\n")
    for each in (first, second):
        with pytest.raises(CommandExitException) as caught:
            each.wait()
        assert (caught.value.exit_code, caught.value.stdout) == (6, "got this\n")
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(handle.pid)


def test_a_connection_ends_with_its_time_and_the_command_goes_on(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    connected = sandbox.commands.connect(handle.pid, timeout=0.5)
    with pytest.raises(TimeoutException):
        connected.wait()
    handle.send_stdin("on")
    handle.close_stdin()
    assert handle.wait().stdout == "on"


def test_a_client_that_does_not_read_stops_its_command_only(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("seq 1000000; echo end", background=True)
    assert sandbox.commands.run("echo other").stdout == "other\n"
    result = handle.wait()
    assert result.stdout.endswith("1000000\nend\n")
    assert len(result.stdout) == sum(len(str(n)) + 1 for n in range(1, 1000001)) + 4
