"""What Inspect's own checks leave out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError
from inspect_ai.util._sandbox.environment import (
    SandboxEnvironmentSpec,
    deserialize_sandbox_specific_config,
)
from inspect_ai.util._sandbox.limits import (
    override_max_exec_output_size,
    override_max_read_file_size,
)

from sandboxd.client import Sandbox, VenusError
from sandboxd.providers.inspect_config import VenusSandboxConfig
from sandboxd.providers.inspect_sandbox import VenusSandboxEnvironment

pytestmark = pytest.mark.anyio
ANY_NAME = "n" * 200 + "é" * 26 + "'\n"


async def made(config: VenusSandboxConfig | str | None = None) -> VenusSandboxEnvironment:
    made = await VenusSandboxEnvironment.sample_init("a task", config, {"__sample_id__": 7})
    return made["default"].as_type(VenusSandboxEnvironment)


async def removed(environment: VenusSandboxEnvironment) -> None:
    environments = {"default": environment}
    await VenusSandboxEnvironment.sample_cleanup("a task", None, environments, True)


@pytest.fixture
async def environment_() -> AsyncIterator[VenusSandboxEnvironment]:
    environment = await made()
    yield environment
    await removed(environment)


async def test_a_missing_program_is_a_result(environment_: VenusSandboxEnvironment) -> None:
    done = await environment_.exec(["no-such-program"])
    assert (done.success, done.returncode) == (False, 127)
    assert "no-such-program" in done.stderr


async def test_a_missing_directory_is_a_result(environment_: VenusSandboxEnvironment) -> None:
    done = await environment_.exec(["true"], cwd="no-such-directory")
    assert (done.success, done.returncode) == (False, 127)
    assert "working directory" in done.stderr


async def test_a_directory_that_may_not_be_entered(environment_: VenusSandboxEnvironment) -> None:
    with pytest.raises(PermissionError):
        await environment_.exec(["true"], cwd="/root", user="nobody")


async def test_users_by_number_and_name(environment_: VenusSandboxEnvironment) -> None:
    for user in ("65534", "nobody"):
        assert (await environment_.exec(["id", "-u"], user=user, cwd="/")).stdout == "65534\n"


async def test_a_timeout_tells_what_was_written(environment_: VenusSandboxEnvironment) -> None:
    with pytest.raises(TimeoutError) as caught:
        await environment_.exec(["sh", "-c", "echo begun; sleep 1000"], timeout=1)
    assert caught.value.truncated_output == "begun\n"  # type: ignore[attr-defined]


async def test_the_end_of_long_output_is_kept(environment_: VenusSandboxEnvironment) -> None:
    with override_max_exec_output_size(5000):
        done = await environment_.exec(["sh", "-c", "seq 100000; seq 10 >&2"])
    assert done.stdout == "\n".join(map(str, range(1, 100001)))[-4999:] + "\n"
    assert done.stderr == "\n".join(map(str, range(1, 11))) + "\n"


async def test_output_that_is_no_text(environment_: VenusSandboxEnvironment) -> None:
    assert (await environment_.exec(["printf", r"a\377b"])).stdout == "a\ufffdb"


async def test_input_that_nobody_reads(environment_: VenusSandboxEnvironment) -> None:
    done = await environment_.exec(["true"], input=b"x" * (1 << 20))
    assert done.success


async def test_without_input_there_is_end_of_file(environment_: VenusSandboxEnvironment) -> None:
    assert (await environment_.exec(["cat"])).stdout == ""


async def test_arguments_too_many_for_a_request(environment_: VenusSandboxEnvironment) -> None:
    arguments = ["$(id)", "'", "", *("y" * 1000 for _ in range(400))]
    script = 'cat; for each; do printf "%s\\n" "$each"; done; ls -A /tmp'
    command = ["sh", "-c", script, "sh", *arguments]
    done = await environment_.exec(command, input="in\n", user="nobody", cwd="/")
    assert done.stdout.startswith("in\n" + "\n".join(arguments) + "\n.venus-")
    assert (await environment_.exec(["ls", "-A", "/tmp"])).stdout == ""


async def test_out_of_memory_is_said() -> None:
    environment = await made(VenusSandboxConfig(memory_bytes=64 << 20))
    done = await environment.exec(["python3", "-c", "b'x' * (1 << 30)"])
    assert (done.returncode, done.stderr) == (137, "killed: out of memory\n")
    await removed(environment)


async def test_a_cancelled_command_dies(environment_: VenusSandboxEnvironment) -> None:
    await environment_.exec(["mkfifo", "pipe"])
    task = asyncio.create_task(environment_.exec(["sh", "-c", "echo $$ > pipe; sleep 1000 & wait"]))
    pid = (await environment_.exec(["cat", "pipe"])).stdout.strip()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gone = f"while [ -d /proc/{pid} ] || pgrep sleep; do :; done"
    assert (await environment_.exec(["sh", "-c", gone], timeout=60)).stdout == ""


async def test_files_of_any_name_and_content(environment_: VenusSandboxEnvironment) -> None:
    content = bytes(range(256)) * 10
    await environment_.write_file(f"below/{ANY_NAME}", content)
    assert await environment_.read_file(f"below/{ANY_NAME}", text=False) == content
    assert (await environment_.exec(["ls", "-N", "below"])).stdout == f"{ANY_NAME}\n"
    with pytest.raises(UnicodeDecodeError):
        await environment_.read_file(f"below/{ANY_NAME}")
    await environment_.write_file("dos", "a\r\nb\rc\n")
    assert await environment_.read_file("dos") == "a\r\nb\rc\n"


async def test_a_write_through_a_link(environment_: VenusSandboxEnvironment) -> None:
    await environment_.exec(["sh", "-c", "echo old > real; ln -s real link"])
    await environment_.write_file("link", "new")
    done = await environment_.exec(["sh", "-c", "cat real; readlink link"])
    assert done.stdout == "newreal\n"


async def test_a_file_that_was_executable_stays_it(environment_: VenusSandboxEnvironment) -> None:
    await environment_.exec(["sh", "-c", "touch run; chmod 751 run; chown 65534 run"])
    await environment_.write_file("run", "#!/bin/sh\necho runs\n")
    assert (await environment_.exec(["./run"])).stdout == "runs\n"
    assert (await environment_.exec(["stat", "-c", "%a %u", "run"])).stdout == "751 65534\n"


async def test_errors_of_files(environment_: VenusSandboxEnvironment) -> None:
    await environment_.write_file("file", "")
    with pytest.raises(NotADirectoryError, match="file/below"):
        await environment_.read_file("file/below")
    with pytest.raises(NotADirectoryError):
        await environment_.write_file("file/below", "")
    with pytest.raises(OSError, match="too long"):
        await environment_.write_file("x" * 256, "")
    with pytest.raises(PermissionError):
        await environment_.write_file("/proc/made", "")


async def test_a_file_that_says_it_is_empty(environment_: VenusSandboxEnvironment) -> None:
    assert "MemTotal" in await environment_.read_file("/proc/meminfo")
    with override_max_read_file_size(10), pytest.raises(OutputLimitExceededError):
        await environment_.read_file("/proc/meminfo")


async def test_the_rights_are_those_of_the_user() -> None:
    environment = await made(VenusSandboxConfig(user="nobody", cwd="/tmp", envs={"A": "b"}))
    done = await environment.exec(["sh", "-c", "id -u; pwd; echo $A"])
    assert done.stdout == "65534\n/tmp\nb\n"
    with pytest.raises(PermissionError, match="/etc/shadow"):
        await environment.read_file("/etc/shadow")
    with pytest.raises(PermissionError, match="/etc/made"):
        await environment.write_file("/etc/made", "")
    assert (await environment.exec(["id", "-u"], user="root")).stdout == "0\n"
    await removed(environment)


async def test_a_sandbox_that_is_gone(
    environment_: VenusSandboxEnvironment, daemon_socket: str
) -> None:
    connection = await environment_.connection(user="nobody")
    assert connection.command.startswith(f"venus-sandbox --socket {daemon_socket} exec -i")
    [info] = Sandbox.list({"task": "a task", "sample": "7"}, socket=daemon_socket)
    Sandbox.connect(info.id, socket=daemon_socket).kill()
    with pytest.raises(SandboxUnavailableError):
        await environment_.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await environment_.read_file("/etc/passwd")
    with pytest.raises(SandboxUnavailableError):
        await environment_.write_file("/etc/passwd", "")
    with pytest.raises(ConnectionError):
        await environment_.connection()


async def test_the_sandbox_ends_under_a_command(
    environment_: VenusSandboxEnvironment, daemon_socket: str
) -> None:
    await environment_.exec(["mkfifo", "pipe"])
    task = asyncio.create_task(environment_.exec(["sh", "-c", "echo > pipe; sleep 1000"]))
    await environment_.exec(["cat", "pipe"])
    [info] = Sandbox.list(socket=daemon_socket)
    Sandbox.connect(info.id, socket=daemon_socket).kill()
    with pytest.raises(SandboxUnavailableError):
        await task


async def test_a_sandbox_in_which_nothing_runs_is_not_left(daemon_socket: str) -> None:
    with pytest.raises(VenusError):
        await made(VenusSandboxConfig(cwd="/no/such/directory"))
    assert Sandbox.list(socket=daemon_socket) == []


async def test_of_a_template(daemon_socket: str) -> None:
    with Sandbox.create(socket=daemon_socket) as original:
        original.files.write("/root/prepared", "warm")
        template = original.snapshot()
    try:
        environment = await made(VenusSandboxConfig(template=template.template_id))
        assert await environment.read_file("prepared") == "warm"
        await removed(environment)
    finally:
        template.remove()


def test_config_as_inspect_hands_it_over(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("image: mine\nmemory_bytes: 1000\n")
    wanted = VenusSandboxConfig(image="mine", memory_bytes=1000)
    assert VenusSandboxConfig.of(str(file)) == wanted
    assert VenusSandboxConfig.of("/where/the/task/is/mine") == VenusSandboxConfig(image="mine")
    stored = SandboxEnvironmentSpec("venus", wanted).config.model_dump()
    assert deserialize_sandbox_specific_config("venus", stored) == wanted
    with pytest.raises(ValueError, match="memory"):
        VenusSandboxConfig(memory="1G")  # type: ignore[call-arg]
