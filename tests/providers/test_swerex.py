"""SWE-ReX's own client, unmodified, against our server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from swerex.deployment.remote import RemoteDeployment
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess

pytestmark = pytest.mark.anyio
TOKEN = "a token of ours"
# Of a client: what is not waited for takes no time.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    port: int

    def runtime(self, name: str = "", token: str = TOKEN) -> RemoteRuntime:
        """As somebody configures it."""
        if name:
            host = f"http://127.0.0.1:{self.port}/{name}"
            return RemoteRuntime(auth_token=token, host=host, timeout=PATIENCE_S)
        host = "http://127.0.0.1"
        return RemoteRuntime(auth_token=token, host=host, port=self.port, timeout=PATIENCE_S)


def start(socket: str, *arguments: str) -> Server:
    command = [sys.executable, "-m", "sandboxd.cli", "--socket", socket, "serve-swerex"]
    process = subprocess.Popen(
        [*command, "--port", "0", *arguments],
        env={**os.environ, "VENUS_SWEREX_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
            return Server(process, int(found[1]))
    raise AssertionError("the server does not start")


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    server.process.communicate()


@pytest.fixture(scope="module")
def server(daemon: DaemonProcess) -> Iterator[Server]:
    server = start(daemon.socket, "--memory", "512M", "--env", "SERVED=yes")
    yield server
    stop(server)


@pytest.fixture
async def runtime(server: Server, environment: None) -> AsyncIterator[RemoteRuntime]:
    runtime = server.runtime()
    yield runtime
    await runtime.close()


@pytest.fixture
async def shell(runtime: RemoteRuntime) -> RemoteRuntime:
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=PATIENCE_S))
    return runtime


async def ran(shell: RemoteRuntime, command: str, **options: object) -> tuple[str, int | None]:
    action = BashAction(command=command, **{"timeout": PATIENCE_S, "check": "silent", **options})
    seen = await shell.run_in_session(action)
    return seen.output, seen.exit_code


async def test_is_alive_without_a_sandbox(runtime: RemoteRuntime) -> None:
    assert await runtime.is_alive()
    assert Sandbox.list() == []


async def test_who_has_no_token_is_refused(server: Server) -> None:
    for token in ("", "another", TOKEN + "x", "é"):
        stranger = server.runtime(token=token)
        alive = await stranger.is_alive()
        assert not alive
        assert "401" in alive.message and "Invalid API Key" in alive.message
        with pytest.raises(aiohttp.ClientResponseError, match="401"):
            await stranger.execute(Command(command=["true"]))
    assert Sandbox.list() == []


async def test_a_session_keeps_its_state(shell: RemoteRuntime) -> None:
    await ran(shell, "cd /srv; x=1; export Y=2; f() { echo f $1; }; alias g='echo aliased'")
    assert await ran(shell, "pwd; echo $x $Y $SERVED; f 3") == ("/srv\n1 2 yes\nf 3\n", 0)
    assert await ran(shell, "g") == ("aliased\n", 0)
    assert await ran(shell, "(exit 7)") == ("", 7)
    assert await ran(shell, "echo $?") == ("7\n", 0)
    assert (await ran(shell, "tty"))[0].startswith("/dev/pts/")


async def test_output_of_both_streams_in_order(shell: RemoteRuntime) -> None:
    command = "for n in 1 2; do echo out $n; echo err $n >&2; done; printf 'no end'"
    assert await ran(shell, command) == ("out 1\nerr 1\nout 2\nerr 2\nno end", 0)
    assert await ran(shell, r"printf 'a\377\033[31mred\033[0m'") == (r"a\xffred", 0)
    assert await ran(shell, "seq 100000") == ("".join(f"{n}\n" for n in range(1, 100001)), 0)


async def test_commands_of_many_lines(shell: RemoteRuntime) -> None:
    command = "cat <<'END'\n$x `y` \"z\" 'w' \\\nEND\nif true\nthen\n  echo yes # not no\nfi\n# end"
    assert await ran(shell, command) == ("$x `y` \"z\" 'w' \\\nyes\n", 0)
    assert await ran(shell, "") == ("", 0)
    assert await ran(shell, "# nothing") == ("", 0)
    long = "x" * 100_000
    assert await ran(shell, f"echo {long}") == (f"{long}\n", 0)
    assert (await ran(shell, "no-such-command"))[0] == "bash: no-such-command: command not found\n"


async def test_what_looks_like_a_mark_ends_nothing(shell: RemoteRuntime) -> None:
    output = "SHELLPS1PREFIX\x1ex:1:0:1\x1e\n"
    assert await ran(shell, r"printf 'SHELLPS1PREFIX\036x:1:0:1\036\n'") == (output, 0)


async def test_check(shell: RemoteRuntime) -> None:
    with pytest.raises(NonZeroExitCodeError, match=r"I said so: .*exit code 3.*\n.*seen"):
        await ran(shell, "echo seen; (exit 3)", check="raise", error_msg="I said so")
    assert await ran(shell, "(exit 3)", check="ignore") == ("", None)
    assert await ran(shell, "true", check="raise") == ("", 0)


async def test_wrong_syntax_runs_nothing(shell: RemoteRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError, match="syntax error") as caught:
        await ran(shell, "touch /root/made\nif")
    assert "syntax error" in caught.value.extra_info["bash_stderr"]
    assert await ran(shell, "ls /root") == ("", 0)


async def test_a_timeout_and_an_interrupt(shell: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match=r"timeout after 0\.5 s") as caught:
        await ran(shell, "echo begun; sleep 1000", timeout=0.5)
    assert isinstance(caught.value, TimeoutError)
    seen = await shell.run_in_session(BashInterruptAction(timeout=PATIENCE_S))
    assert "begun" in seen.output
    assert await ran(shell, "echo $?; pgrep sleep") == ("130\n", 1)
    # Of one that does nothing, too.
    await shell.run_in_session(BashInterruptAction(timeout=PATIENCE_S))
    assert await ran(shell, "echo still here") == ("still here\n", 0)


async def test_an_interrupt_while_a_command_is_waited_for(shell: RemoteRuntime) -> None:
    task = asyncio.create_task(ran(shell, "touch /root/begun; sleep 1000; echo not reached"))
    begun = "until [ -e /root/begun ]; do :; done"
    await shell.execute(Command(command=begun, shell=True, timeout=PATIENCE_S))
    await shell.run_in_session(BashInterruptAction(timeout=PATIENCE_S))
    output, code = await task
    assert (output.replace("^C", "").strip(), code) == ("", 130)
    assert await ran(shell, "echo still here") == ("still here\n", 0)


async def test_what_ignores_an_interrupt_is_killed(shell: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await ran(
            shell, "bash -c 'trap \"\" INT TSTP TERM; while :; do sleep 0.1; done'", timeout=1
        )
    await shell.run_in_session(BashInterruptAction(timeout=0.2, n_retry=2))
    assert (await ran(shell, "echo still here"))[0] == "still here\n"


async def test_a_command_after_a_timeout_waits(shell: RemoteRuntime) -> None:
    await shell.execute(Command(command=["mkfifo", "/root/go"]))
    with pytest.raises(CommandTimeoutError):
        await ran(shell, "cat /root/go", timeout=0.5)
    with pytest.raises(CommandTimeoutError):
        await ran(shell, "touch /root/second", timeout=0.5)
    await shell.execute(Command(command="echo late > /root/go", shell=True))
    assert await ran(shell, "ls /root") == ("late\ngo\n", 0)


async def test_an_interactive_program(shell: RemoteRuntime) -> None:
    async def say(command: str, **options: object) -> tuple[str, str]:
        action = BashAction(command=command, timeout=PATIENCE_S, **options)
        seen = await shell.run_in_session(action)
        assert seen.exit_code == 0
        return seen.output, seen.expect_string

    prompt = {"is_interactive_command": True, "expect": [">>> "]}
    _, matched = await say("python3 -q", **prompt)
    assert matched == ">>> "
    await say("x = 6 * 7", **prompt)
    assert (await say("print(x)", **prompt)) == ("42", ">>> ")
    _, matched = await say("quit()", is_interactive_quit=True)
    assert matched == "SHELLPS1PREFIX"
    assert await ran(shell, "echo back; echo $-") == (
        "back\n" + (await ran(shell, "echo $-"))[0],
        0,
    )


async def test_expected_output_ends_the_wait(shell: RemoteRuntime) -> None:
    action = BashAction(
        command="echo ready on port 80; cat", expect=[r"port \d+\n"], timeout=PATIENCE_S
    )
    with pytest.raises(NoExitCodeError):
        await shell.run_in_session(action)
    await shell.run_in_session(BashInterruptAction(timeout=PATIENCE_S))
    action = action.model_copy(update={"check": "silent"})
    seen = await shell.run_in_session(action)
    assert (seen.output, seen.exit_code, seen.expect_string) == ("ready on ", None, r"port \d+\n")


async def test_the_shell_ends(shell: RemoteRuntime) -> None:
    with pytest.raises(SessionNotInitializedError, match="last words"):
        await ran(shell, "echo last words; exit 3")
    with pytest.raises(SessionNotInitializedError):
        await ran(shell, "true")
    await shell.close_session(CloseBashSessionRequest())
    await shell.create_session(CreateBashSessionRequest())
    assert await ran(shell, "echo again") == ("again\n", 0)


async def test_sessions_by_name(shell: RemoteRuntime) -> None:
    await shell.execute(
        Command(command="echo 'echo sourced; Z=3; PS1=mine' > /root/rc", shell=True)
    )
    made = await shell.create_session(
        CreateBashSessionRequest(session="b", startup_source=["/root/rc"], startup_timeout=50)
    )
    assert made.output == "sourced\n"
    assert await ran(shell, "echo $Z; (sleep 1000 &)", session="b") == ("3\n", 0)
    assert await ran(shell, "echo $Z") == ("\n", 0)
    with pytest.raises(SessionExistsError):
        await shell.create_session(CreateBashSessionRequest(session="b"))
    await shell.close_session(CloseBashSessionRequest(session="b"))
    assert await ran(shell, "pgrep sleep") == ("", 1)
    for missing in (BashAction(command="true", session="b"), BashInterruptAction(session="b")):
        with pytest.raises(SessionDoesNotExistError):
            await shell.run_in_session(missing)
    with pytest.raises(SessionDoesNotExistError):
        await shell.close_session(CloseBashSessionRequest(session="b"))
    assert await ran(shell, "ls -A /tmp | wc -l") == ("1\n", 0)


async def test_execute(runtime: RemoteRuntime) -> None:
    done = await runtime.execute(
        Command(command=["sh", "-c", r"printf 'a\377'; echo b >&2; exit 4"])
    )
    assert (done.stdout, done.stderr, done.exit_code) == (r"a\xff", "b\n", 4)
    done = await runtime.execute(
        Command(
            command="echo $A; pwd; echo err >&2; echo out; kill $$",
            shell=True, env={"A": "x y"}, cwd="/usr/", merge_output_streams=True,
        )
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.exit_code) == ("x y\n/usr\nerr\nout\n", "", -15)
    assert (await runtime.execute(Command(command="pwd"))).stdout == "/root\n"
    assert (await runtime.execute(Command(command=["cat"]))).stdout == ""
    with pytest.raises(NonZeroExitCodeError, match=r"so: .*exit code 1"):
        await runtime.execute(Command(command="false", check=True, error_msg="so"))
    with pytest.raises(FileNotFoundError, match="no-such"):
        await runtime.execute(Command(command=["no-such"]))
    with pytest.raises(PermissionError):
        await runtime.execute(Command(command=["/etc/passwd"]))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["true"], cwd="/no/such"))


async def test_execute_kills_all_at_a_timeout(runtime: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match=r"1\.0s"):
        await runtime.execute(Command(command="setsid sleep 99 & sleep 99", shell=True, timeout=1))
    gone = Command(command="while pgrep sleep; do :; done", shell=True, timeout=PATIENCE_S)
    assert (await runtime.execute(gone)).exit_code == 0


async def test_files(runtime: RemoteRuntime) -> None:
    name = "/root/below/" + "é" * 100 + "'\n"
    await runtime.write_file(WriteFileRequest(path=name, content="ünï\0"))
    assert (await runtime.read_file(ReadFileRequest(path=name))).content == "ünï\0"
    await runtime.execute(Command(command=r"printf 'a\r\n\377' > latin", shell=True))
    read = ReadFileRequest(path="latin", encoding="latin-1")
    assert (await runtime.read_file(read)).content == "a\nÿ"
    read = ReadFileRequest(path="/root/latin", errors="backslashreplace")
    assert (await runtime.read_file(read)).content == "a\n\\xff"
    with pytest.raises(SwerexException, match="can't decode"):
        await runtime.read_file(ReadFileRequest(path="latin"))
    with pytest.raises(LookupError):
        await runtime.read_file(ReadFileRequest(path="latin", encoding="no-such"))
    with pytest.raises(FileNotFoundError, match="/root/missing"):
        await runtime.read_file(ReadFileRequest(path="missing"))
    with pytest.raises(IsADirectoryError):
        await runtime.read_file(ReadFileRequest(path="/etc"))
    with pytest.raises(IsADirectoryError):
        await runtime.write_file(WriteFileRequest(path="/etc", content=""))
    with pytest.raises(PermissionError):
        await runtime.write_file(WriteFileRequest(path="/proc/made", content=""))


async def test_upload(runtime: RemoteRuntime, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    tree = tmp_path / "tree"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "é n").write_bytes(content)
    (tree / "run").write_text("#!/bin/sh\necho runs\n")
    (tree / "run").chmod(0o755)
    for source, target in ((tree, "/srv/to"), (tree / "a" / "é n", "/srv/new/file")):
        await runtime.upload(UploadRequest(source_path=str(source), target_path=target))
    check = "cmp '/srv/to/a/é n' /srv/new/file && cd /srv/to && ./run && find . | sort"
    done = await runtime.execute(Command(command=check, shell=True))
    assert done.stdout == "runs\n.\n./a\n./a/empty\n./a/é n\n./run\n", done.stderr
    with pytest.raises(IsADirectoryError):
        await runtime.upload(UploadRequest(source_path=str(tree / "run"), target_path="/srv/to"))


async def test_names_are_sandboxes_of_their_own(server: Server, daemon_socket: str) -> None:
    runtimes = [server.runtime(f"task-{number}") for number in range(8)]

    async def work(number: int, runtime: RemoteRuntime) -> str:
        assert await runtime.is_alive()
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=PATIENCE_S))
        await ran(runtime, f"echo {number} >> /root/number")
        return (await runtime.read_file(ReadFileRequest(path="number"))).content

    seen = await asyncio.gather(*(work(*each) for each in enumerate(runtimes)))
    assert seen == [f"{number}\n" for number in range(8)]
    made = Sandbox.list({"made-by": "swe-rex"}, socket=daemon_socket)
    assert {each.labels["name"] for each in made} == {f"task-{number}" for number in range(8)}
    assert all(each.lease for each in made)
    assert {each.limits.memory_bytes for each in made} == {512 << 20}
    await asyncio.gather(*(runtime.close() for runtime in runtimes))
    assert Sandbox.list(socket=daemon_socket) == []


async def test_many_first_requests_make_one_sandbox(runtime: RemoteRuntime) -> None:
    commands = [runtime.execute(Command(command=["hostname"])) for _ in range(10)]
    assert len({done.stdout for done in await asyncio.gather(*commands)}) == 1
    assert len(Sandbox.list()) == 1


async def test_after_close_there_is_a_new_one(runtime: RemoteRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/root/old", content=""))
    await runtime.close()
    assert Sandbox.list() == []
    assert (await runtime.execute(Command(command=["ls", "/root"]))).stdout == ""


async def test_a_sandbox_that_is_gone(shell: RemoteRuntime) -> None:
    [info] = Sandbox.list()
    Sandbox.connect(info.id).kill()
    alive = await shell.is_alive()
    assert not alive and info.id in alive.message
    with pytest.raises(SwerexException, match=info.id):
        await shell.execute(Command(command=["true"]))
    with pytest.raises(SwerexException, match=info.id):
        await ran(shell, "true")


def test_a_deployment_from_start_to_stop(server: Server, environment: None) -> None:
    # It stops once more when it is forgotten, which must not be in a loop that runs.
    deployment = RemoteDeployment(auth_token=TOKEN, port=server.port, timeout=PATIENCE_S)

    async def use() -> None:
        await deployment.start()
        assert await deployment.is_alive()
        request = CreateBashSessionRequest(startup_timeout=PATIENCE_S)
        await deployment.runtime.create_session(request)
        assert await ran(deployment.runtime, "echo deployed") == ("deployed\n", 0)
        await deployment.stop()

    asyncio.run(use())
    assert Sandbox.list() == []


async def test_the_end_of_the_server_removes_all(daemon_socket: str) -> None:
    server = start(daemon_socket, "--image", "base")
    runtimes = server.runtime(), server.runtime("other")
    for runtime in runtimes:
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=PATIENCE_S))
    running = asyncio.create_task(ran(runtimes[0], "touch /root/begun; sleep 1000"))
    begun = "until [ -e /root/begun ]; do :; done"
    await runtimes[0].execute(Command(command=begun, shell=True, timeout=PATIENCE_S))
    assert len(Sandbox.list(socket=daemon_socket)) == 2
    await asyncio.to_thread(stop, server)
    assert Sandbox.list(socket=daemon_socket) == []
    with pytest.raises(aiohttp.ClientError):
        await running


def test_there_is_no_server_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VENUS_SWEREX_TOKEN", raising=False)
    command = [sys.executable, "-m", "sandboxd.cli", "serve-swerex", "--port", "0"]
    for more in ([], ["--auth-token", ""]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "auth-token" in done.stderr


async def test_bodies_are_bounded(server: Server, environment: None) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    url = f"http://127.0.0.1:{server.port}"
    headers = {"X-API-Key": TOKEN}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{url}/write_file", data=chunks()) as response:
            assert response.status == 413
        for body in ({"path": "/x"}, {"command": [1]}, []):
            async with session.post(f"{url}/execute", json=body) as response:
                assert response.status == 422
        async with session.post(f"{url}/{'n' * 129}/close") as response:
            assert response.status == 404
        async with session.post(f"{url}/no_such_route", json={}) as response:
            assert response.status == 404
