"""Commands through a real daemon: streams, ends, identities."""

from __future__ import annotations

import hashlib
import signal
import threading
import time

import psutil
import pytest

from sandboxd.client import Sandbox
from sandboxd.errors import ExecFailed, NotFound
from sandboxd.protocol import FrameType
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import exec_frames, request

MIB = 1 << 20


def test_stdout_and_stderr_are_separate_and_exact(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("printf 'a\\000\\377b'; printf 'e\\376' >&2")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"a\0\xffb", b"e\xfe")
    assert result.exit_code == 0


def test_without_input_a_command_reads_end_of_file(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("wc -c").stdout.strip() == "0"


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, MIB])
def test_inline_input_arrives_whole(sandbox: Sandbox, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    result = sandbox.commands.run("sha256sum", stdin=data[:size])
    assert result.stdout.split()[0] == hashlib.sha256(data[:size]).hexdigest()


def test_a_command_that_ignores_its_input_ends_as_usual(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("exec <&-; echo done", stdin=b"x" * MIB).stdout == "done\n"


def test_streamed_input_has_the_pace_of_the_command(sandbox: Sandbox) -> None:
    data = b"0123456789abcdef" * (8 * MIB // 16)
    result = sandbox.commands.run("sha256sum", stdin=iter([data[:7], data[7:MIB], data[MIB:]]))
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_conversation(sandbox: Sandbox) -> None:
    with sandbox.commands.run("while read x; do echo got $x; done", True, stdin=True) as handle:
        output = iter(handle)
        for word in ("one", "two"):
            handle.send_stdin(word + "\n")
            assert next(output).data == f"got {word}\n".encode()
        handle.close_stdin()
        assert list(output) == []
        assert handle.exit.exit_code == 0


def test_64_mib_of_binary_output_with_flat_daemon_memory(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    size = 64 * MIB
    script = (
        "import sys,os\nblock=os.urandom(65536)\nimport hashlib\nh=hashlib.sha256()\n"
        f"for _ in range({size}//65536):\n  sys.stdout.buffer.write(block); h.update(block)\n"
        "sys.stderr.write(h.hexdigest())"
    )
    sandbox.commands.run(["python3", "-c", "print(1)"])
    process = psutil.Process(daemon.pid)
    before = peak = process.memory_info().rss
    digest, received, stderr = hashlib.sha256(), 0, b""
    for frame, data in exec_frames(
        daemon.socket, sandbox.sandbox_id, {"argv": ["python3", "-c", script]}
    ):
        if frame is FrameType.STDOUT:
            digest.update(data)
            received += len(data)
            peak = max(peak, process.memory_info().rss)
        elif frame is FrameType.STDERR:
            stderr += data
    assert received == size
    assert digest.hexdigest() == stderr.decode()
    assert peak - before < 8 * MIB


def test_a_reader_that_does_not_read_stops_the_command_not_the_daemon(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss
    stream = exec_frames(daemon.socket, sandbox.sandbox_id, {"command": "yes"})
    assert next(stream)[0] is FrameType.STARTED
    cpu_before = sandbox.metrics().cpu_s
    deadline = time.monotonic() + 30
    while True:  # until the command no longer advances, because every buffer is full
        time.sleep(0.1)
        cpu = sandbox.metrics().cpu_s
        if cpu == cpu_before or time.monotonic() > deadline:
            break
        cpu_before = cpu
    assert time.monotonic() < deadline
    assert process.memory_info().rss - before < 4 * MIB
    assert sandbox.commands.run("echo others go on").stdout == "others go on\n"
    stream.close()


def test_output_beyond_its_bound_is_cut_and_counted(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(
        "head -c 3000000 /dev/zero; echo end >&2", max_output_bytes=100_000
    )
    assert (len(result.stdout_bytes), result.truncated, result.exit_code) == (100_000, True, 0)
    assert result.stderr_bytes == b""


def test_environment_directory_and_user(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, envs={"A": "1", "B": "2"}, cwd="/tmp") as sandbox:
        run = sandbox.commands.run
        assert run("echo $A $B; pwd", envs={"B": "x y"}).stdout == "1 x y\n/tmp\n"
        assert run("pwd; id -u; echo $HOME", cwd="/usr", user="1000").stdout.startswith(
            "/usr\n1000\n"
        )
        assert run("id -un; id -g; echo $HOME", user="nobody").stdout == (
            "nobody\n65534\n/nonexistent\n"
        )
        assert run("id -u; cat /proc/self/status | grep CapEff", user="1000:1000").stdout == (
            "1000\nCapEff:\t0000000000000000\n"
        )
        assert "PATH=/usr/local/sbin" in run(["env"]).stdout


@pytest.mark.parametrize(
    ("what", "kwargs", "cause"),
    [
        (["/no/such/program"], {}, "exec: ENOENT"),
        (["/etc/passwd"], {}, "exec: EACCES"),
        (["true"], {"cwd": "/no/such"}, "cwd: ENOENT"),
        (["true"], {"user": "nobody-here"}, "user: ENOENT"),
    ],
)
def test_what_cannot_start_says_at_which_step(
    sandbox: Sandbox, what: list[str], kwargs: dict[str, str], cause: str
) -> None:
    with pytest.raises(ExecFailed) as raised:
        sandbox.commands.run(what, **kwargs)  # type: ignore[call-overload]
    assert cause in raised.value.cause
    assert raised.value.object == sandbox.sandbox_id
    assert sandbox.metrics().execs_running == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_an_end_by_signal_is_told(sandbox: Sandbox, number: int) -> None:
    result = sandbox.commands.run(["sh", "-c", f"kill -{int(number)} $$"], check=False)
    assert (result.signal, result.reason.value) == (number, "signaled")


def test_timeout_kills_children_that_hold_the_pipe_and_left_the_group(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    result = sandbox.commands.run(
        "echo before; setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000",
        timeout=0.5,
        check=False,
    )
    assert time.monotonic() - begun < 10
    assert (result.reason.value, result.stdout) == ("timeout", "before\n")
    assert "sleep" not in sandbox.commands.run("ps -eo comm").stdout


def test_the_leaders_exit_ends_the_answer_though_a_child_holds_the_pipe(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    result = sandbox.commands.run("(sleep 1000; echo late) & echo first")
    assert time.monotonic() - begun < 10
    assert result.stdout == "first\n"
    assert "sleep" in sandbox.commands.run("ps -eo comm").stdout


def test_a_background_process_that_writes_neither_blocks_nor_dies(sandbox: Sandbox) -> None:
    loop = "i=0; while [ $i -lt 3000 ]; do printf '%0100d\\n' $i; i=$((i+1)); done"
    sandbox.commands.run(f"({loop}; echo ok > /tmp/done) &")
    assert (
        sandbox.commands.run(
            "while ! [ -e /tmp/done ]; do sleep 0.02; done; cat /tmp/done", timeout=30
        ).stdout
        == "ok\n"
    )
    deadline = time.monotonic() + 10
    while sandbox.metrics().execs_running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sandbox.metrics().execs_running == 0


def test_a_client_that_leaves_takes_its_command_along(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    stream = exec_frames(
        daemon.socket, sandbox.sandbox_id, {"command": "setsid sleep 1000 & sleep 1000"}
    )
    next(stream)
    stream.close()
    deadline = time.monotonic() + 10
    while "sleep" in sandbox.commands.run("ps -eo comm").stdout:
        assert time.monotonic() < deadline
    assert sandbox.metrics().execs_running == 0


def test_a_signal_by_request(sandbox: Sandbox) -> None:
    command = "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.02; done"
    with sandbox.commands.run(command, True) as handle:
        output = iter(handle)
        assert next(output).data == b"ready\n"
        handle.send_signal(signal.SIGUSR1)
        assert b"".join(each.data for each in output) == b"caught\n"
        assert (handle.exit.exit_code, handle.exit.reason.value) == (3, "exited")
    with sandbox.commands.run("sleep 1000", True) as handle:
        handle.kill()
        result = handle.wait(check=False)
        assert (result.reason.value, result.signal) == ("killed", signal.SIGKILL)
        with pytest.raises(NotFound):
            handle.send_signal(signal.SIGTERM)


def test_resources_are_accounted(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(
        ["python3", "-c", "x = bytearray(50_000_000)\nfor i in range(2_000_000): pass"]
    )
    assert result.exit.user_cpu_s > 0.01
    assert 50_000_000 < result.exit.max_rss_bytes < 200_000_000
    assert 0 < result.exit.duration_s < 60


def test_many_commands_at_once(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    outputs: dict[int, str] = {}

    def run(index: int) -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
        outputs[index] = other.commands.run(f"sleep 0.05; echo {index}").stdout

    threads = [threading.Thread(target=run, args=(index,)) for index in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {index: f"{index}\n" for index in range(24)}


def test_commands_beyond_the_bound_are_refused(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    limit = request(daemon.socket, "GET", "/v1/info")[1]["limits"]["max_execs_per_sandbox"]
    streams = []
    for _ in range(limit):
        stream = exec_frames(daemon.socket, sandbox.sandbox_id, {"argv": ["sleep", "1000"]})
        next(stream)
        streams.append(stream)
    status, body = request(
        daemon.socket, "GET", f"/v1/sandboxes/{sandbox.sandbox_id}/files/stat?path=/"
    )
    assert (status, body["error"]["code"]) == (429, "limit_exceeded")
    for stream in streams:
        stream.close()
