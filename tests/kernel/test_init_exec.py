"""Execs through sandbox-init: outcome, streams, users, timeouts, what a command may and may not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import init_protocol as protocol
from tests.support.init_harness import CAPABILITIES, RawSandbox, StartFailed, pump

# Leaves the session and the parent behind, holds the pipe, and says so before the parent may end.
ESCAPE = """
import os, sys, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, b'.')
        time.sleep(1000)
    os._exit(0)
os.read(r, 1)
print('escaped', flush=True)
"""


@pytest.fixture(scope="module")
def shared(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSandbox]:
    """For tests that leave no trace in the sandbox."""
    with RawSandbox(rootfs, tmp_path_factory.mktemp("init") / "sandbox") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(rootfs: Path, tmp_path: Path) -> Iterator[RawSandbox]:
    with RawSandbox(rootfs, tmp_path / "sandbox") as sandbox:
        yield sandbox


def processes(sandbox: RawSandbox) -> set[bytes]:
    """Command lines of everything in the sandbox but init and the shell that looks."""
    script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done"
    lines = {line.strip() for line in sandbox.shell(script).stdout.splitlines()}
    return {
        line
        for line in lines
        if line
        and line != b"sandbox-init"
        and b"for f in" not in line
        and not line.startswith(b"tr ")
    }


def test_exit_codes(shared: RawSandbox) -> None:
    assert shared.run("/bin/true").code == 0
    assert shared.shell("exit 37").code == 37
    assert shared.shell("exit 255").code == 255


def test_death_by_signal(shared: RawSandbox) -> None:
    exited = shared.shell("kill -SEGV $$").exited
    assert (exited.exit_code, exited.signal) == (None, signal.SIGSEGV)
    assert not exited.timed_out and not exited.killed_by_request


def test_streams_are_separate_and_binary(shared: RawSandbox) -> None:
    data = bytes(range(256)) * 4096
    done = shared.shell("cat; printf '\\377\\000' >&2", stdin=data)
    assert done.stdout == data
    assert done.stderr == b"\xff\x00"


def test_without_descriptors_the_streams_are_null(shared: RawSandbox) -> None:
    exec_id = shared.start(
        "/bin/sh", "-c", "cat && echo out && echo err >&2 && ls -l /proc/self/fd/0"
    )
    assert shared.client.wait_exit(exec_id).exit_code == 0
    assert shared.client.release(exec_id) == 0


def test_a_command_has_three_descriptors(shared: RawSandbox) -> None:
    done = shared.python("import os; print(sorted(os.listdir('/proc/self/fd')))")
    assert done.stdout == b"['0', '1', '2', '3']\n"  # 3 is the directory being read


def test_environment_directory_and_arguments(shared: RawSandbox) -> None:
    done = shared.run(
        "/bin/sh",
        "-c",
        'pwd; echo "$A|$B|$1|$HOME"',
        "name",
        "a b",
        env={"A": "x y", "B": "z=1"},
        cwd="/usr/lib",
    )
    assert done.stdout == b"/usr/lib\nx y|z=1|a b|/root\n"
    assert shared.shell("echo $HOME", env={"HOME": "/elsewhere"}).stdout == b"/elsewhere\n"
    assert shared.run("/bin/pwd", cwd="").stdout == b"/root\n"


def test_resource_use_is_reported(shared: RawSandbox) -> None:
    done = shared.python("b = bytearray(40 << 20); [None for _ in range(400000)]")
    assert done.code == 0
    assert done.exited.max_rss_kib > 40 << 10
    assert done.exited.user_us + done.exited.system_us > 0
    assert done.exited.user_us < done.exited.duration_us * 2
    # Not what the process before it used: a new exec starts from init's own few pages.
    assert shared.run("/bin/true").exited.max_rss_kib < 10 << 10


@pytest.mark.parametrize(
    ("argv", "options", "step", "error"),
    [
        (("/no/such",), {}, "EXEC", errno.ENOENT),
        (("no-such-program",), {}, "EXEC", errno.ENOENT),
        (("",), {}, "EXEC", errno.ENOENT),
        (("/etc/passwd",), {}, "EXEC", errno.EACCES),
        (("/etc",), {}, "EXEC", errno.EACCES),
        (("/bin/true",), {"cwd": "/no/such"}, "CWD", errno.ENOENT),
        (("/bin/true",), {"cwd": "/etc/passwd"}, "CWD", errno.ENOTDIR),
        (("/bin/true",), {"cwd": "/root", "user": "nobody"}, "CWD", errno.EACCES),
        (("/bin/true",), {"user": "nobody-here"}, "USER", errno.ENOENT),
        (("/bin/true",), {"user": "root:no-group"}, "USER", errno.ENOENT),
        (("/bin/true",), {"user": "1:2:3"}, "USER", errno.EINVAL),
        (("/bin/true",), {"user": "99999"}, "CREDENTIALS", errno.EINVAL),
    ],
)
def test_what_cannot_start_says_where_and_why(
    shared: RawSandbox, argv: tuple[str, ...], options: dict[str, str], step: str, error: int
) -> None:
    with pytest.raises(StartFailed) as caught:
        shared.start(*argv, **options)  # type: ignore[arg-type]
    assert (caught.value.step.name, caught.value.errno) == (step, error)
    assert shared.client.hello().exec_count == 0


def test_users(sandbox: RawSandbox) -> None:
    assert sandbox.shell("id -u; id -g").stdout == b"0\n0\n"
    assert sandbox.shell("id -un; id -gn", user="daemon").stdout == b"daemon\ndaemon\n"
    assert sandbox.shell("id -u; id -g; id -G", user="1234:77").stdout == b"1234\n77\n77\n"
    assert sandbox.shell("id -u; id -g; echo $HOME", user="1234").stdout == b"1234\n0\n/\n"
    assert sandbox.shell("id -gn; id -G", user="daemon:users").stdout == b"users\n100\n"
    assert sandbox.shell("echo 'extra:x:555:bin,daemon' >> /etc/group").code == 0
    assert sandbox.shell("id -G", user="daemon").stdout == b"1 555\n"
    assert (
        sandbox.shell("echo $HOME; pwd", user="daemon", cwd="").stdout == b"/usr/sbin\n/usr/sbin\n"
    )


def test_a_hostile_passwd_cannot_hold_an_exec(sandbox: RawSandbox) -> None:
    assert sandbox.shell("rm /etc/passwd && mkfifo /etc/passwd").code == 0
    with pytest.raises(StartFailed) as caught:
        sandbox.start("/bin/true", user="daemon")
    assert caught.value.step is protocol.ExecStep.USER
    assert sandbox.run("/bin/true").code == 0


def status_of(sandbox: RawSandbox, user: str) -> dict[str, str]:
    text = sandbox.shell("cat /proc/self/status", user=user).stdout.decode()
    return {
        name: value.strip() for name, value in (line.split(":", 1) for line in text.splitlines())
    }


def test_privileges_of_commands(shared: RawSandbox) -> None:
    root, user = status_of(shared, ""), status_of(shared, "1000:1000")
    for status in (root, user):
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert int(status["CapBnd"], 16) == CAPABILITIES
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert int(status["SigBlk"], 16) == int(status["SigIgn"], 16) == 0
    assert int(root["CapEff"], 16) == int(root["CapPrm"], 16) == CAPABILITIES
    assert int(user["CapEff"], 16) == int(user["CapPrm"], 16) == 0
    script = "cat /proc/self/oom_score_adj; cut -d' ' -f5,6 /proc/self/stat; echo $$; umask"
    score, session, pid, mask = shared.shell(script).stdout.split(b"\n")[:4]
    assert score == b"300"
    assert session.split() == [pid, pid]
    assert mask == b"0022"


REACH_INIT = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static void say(const char *what, long result) {
  printf("%s %d %d\n", what, result < 0 ? -1 : 0, result < 0 ? errno : 0);
}
int main(void) {
  int signalled = 0;
  for (int number = 1; number < 65; number++)
    signalled += kill(1, number) == 0;
  printf("signals %d\n", signalled);
  say("attach", ptrace(PTRACE_ATTACH, 1, 0, 0));
  say("seize", ptrace(PTRACE_SEIZE, 1, 0, 0));
  char byte;
  struct iovec mine = {&byte, 1}, its = {(void *)0x400000, 1};
  say("memory", syscall(SYS_process_vm_readv, 1, &mine, 1, &its, 1, 0));
  say("descriptor", syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 5, 0));
  const char *paths[] = {"mem", "environ", "maps", "fd/5", "exe", "cwd", "root", "ns/pid", "stack"};
  for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/1/%s", paths[i]);
    int fd = open(path, O_RDONLY);
    say(paths[i], fd < 0 ? -1 : read(fd, &byte, 1));
  }
  return 0;
}
"""


def slice_line(text: str) -> list[str]:
    return [line.split()[-1] for line in text.splitlines() if line.startswith("se.slice")]


def test_the_short_slice_is_inits_own(shared: RawSandbox) -> None:
    """Empty where the kernel does not show slices."""
    ordinary = slice_line(Path("/proc/self/sched").read_text())
    assert slice_line(shared.shell("cat /proc/self/sched").stdout.decode()) == ordinary
    assert slice_line(Path(f"/proc/{shared.pid}/sched").read_text()) != ordinary or not ordinary


def test_init_is_out_of_reach(sandbox: RawSandbox, tmp_path: Path) -> None:
    source, program = tmp_path / "reach.c", tmp_path / "reach"
    source.write_text(REACH_INIT)
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    request = protocol.write_request(sandbox.exec_id(), "/reach", mode=0o755)
    data = program.read_bytes()
    frames = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    upload = b"".join(map(protocol.encode_upload_frame, frames)) + protocol.UPLOAD_END
    assert sandbox.run_request(request, upload).code == 0
    lines = sandbox.run("/reach").stdout.decode().splitlines()
    # The kernel takes the signals and drops them: PID 1 has no handlers. What counts is below.
    assert lines.pop(0).startswith("signals ")
    for line in lines:
        _, result, error = line.split()
        assert result == "-1" and int(error) in (errno.EPERM, errno.EACCES), lines
    assert len(lines) == 13
    assert sandbox.client.hello().sandbox_id == "test-sandbox"


def test_orphans_are_reaped(shared: RawSandbox) -> None:
    script = """
import os
pids = []
for _ in range(50):
    r, w = os.pipe()
    if os.fork() == 0:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.write(w, str(pid).encode())
        os._exit(0)
    os.wait()
    pids.append(int(os.read(r, 20)))
while any(os.path.exists(f'/proc/{pid}') for pid in pids):
    os.sched_yield()
print('gone')
"""
    assert shared.python(script, timeout_ms=20_000).stdout == b"gone\n"


@pytest.mark.parametrize("trap", ["", "trap '' TERM INT HUP;"])
def test_timeout(shared: RawSandbox, trap: str) -> None:
    done = shared.shell(trap + "echo begun; sleep 1000", timeout_ms=300)
    assert done.stdout == b"begun\n"
    assert done.exited.timed_out
    assert done.exited.signal == signal.SIGKILL
    assert 300_000 <= done.exited.duration_us < 10_000_000


def test_timeout_kills_what_escaped(shared: RawSandbox) -> None:
    # run() returns only when nobody holds the pipe any more.
    done = shared.python(ESCAPE + "time.sleep(1000)", timeout_ms=1000)
    assert done.stdout == b"escaped\n"
    assert done.exited.timed_out
    assert processes(shared) == set()


def test_timeout_kills_the_tree_without_cgroups(rootfs: Path, tmp_path: Path) -> None:
    with RawSandbox(rootfs, tmp_path / "sandbox", use_cgroup=False) as sandbox:
        script = "setsid sleep 1001 & sh -c 'sleep 1002 & wait' & echo begun; wait"
        done = sandbox.shell(script, timeout_ms=500)
        assert done.stdout == b"begun\n"
        assert done.exited.timed_out
        assert processes(sandbox) == set()


def test_kill_of_the_tree_after_its_leader_ended(shared: RawSandbox) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    exec_id = shared.start("python3", "-c", ESCAPE, fds=protocol.ExecFds(stdout=write_end))
    os.close(write_end)
    assert shared.client.wait_exit(exec_id).exit_code == 0
    assert os.read(read_end, 100) == b"escaped\n"
    assert shared.client.kill(exec_id) == 0
    assert pump({read_end: b""}, -1, b"")[read_end] == b""
    os.close(read_end)
    assert shared.client.release(exec_id) == 0
    assert processes(shared) == set()


def test_signals_by_request(shared: RawSandbox) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    exec_id = shared.start("/bin/sh", "-c", script, fds=protocol.ExecFds(stdout=write_end))
    os.close(write_end)
    assert os.read(read_end, 100) == b"ready\n"
    assert shared.client.kill(exec_id, signal.SIGTERM, whole_tree=False) == 0
    exited = shared.client.wait_exit(exec_id)
    assert (exited.exit_code, exited.killed_by_request) == (3, True)
    assert os.read(read_end, 100) == b"got\n"
    os.close(read_end)
    assert shared.client.kill(exec_id, signal.SIGTERM, whole_tree=False) == errno.ESRCH
    assert shared.client.release(exec_id) == 0
    assert shared.client.release(exec_id) == errno.ENOENT
    assert shared.client.kill(exec_id) == errno.ENOENT


def test_release_waits_for_the_end(shared: RawSandbox) -> None:
    exec_id = shared.start("sleep", "1000")
    assert shared.client.release(exec_id) == errno.EBUSY
    with pytest.raises(StartFailed) as caught:
        shared.client.start(protocol.ExecRequest(exec_id, ("/bin/true",)))
    assert caught.value.errno == errno.EEXIST
    assert shared.client.kill(exec_id) == 0
    assert shared.client.wait_exit(exec_id).signal == signal.SIGKILL
    assert shared.client.release(exec_id) == 0


def test_many_at_once(shared: RawSandbox) -> None:
    started = [shared.start("sleep", "1000") for _ in range(100)]
    assert shared.client.hello().exec_count == 100
    for exec_id in started:
        assert shared.client.kill(exec_id) == 0
    for exec_id in started:
        assert shared.client.wait_exit(exec_id).killed_by_request
        assert shared.client.release(exec_id) == 0
    assert len(os.listdir(f"/proc/{shared.pid}/fd")) == 7


def test_shutdown_ends_the_sandbox(sandbox: RawSandbox) -> None:
    sandbox.start("sleep", "1000")
    sandbox.client.send(protocol.encode_shutdown(1))
    info = os.waitid(os.P_PIDFD, sandbox.pidfd, os.WEXITED | os.WNOWAIT)
    assert info is not None and (info.si_code, info.si_status) == (os.CLD_EXITED, 0)
