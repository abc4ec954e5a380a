"""The daemon as a unit, on a version 2 hierarchy alone. In the order of the file: what one starts,
the next goes on with. It changes the machine, and is only for the guest (`./venus test qemu`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.client import CommandInfo, Daemon, ExitReason, Sandbox, SandboxState, VenusError
from tests.kernel.test_daemon_recovery import eventually as _eventually

MIB = 1 << 20
DAEMON = "venus-sandboxd.service"
SANDBOXES = "venus-sandboxes.service"
SOCKET = "venus-sandboxd.socket"
GROUPS = Path("/sys/fs/cgroup/venus.slice/venus-sandboxes.service/sandboxes")
COUNTING = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done"


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Patient: everything is emulated."""
    _eventually(condition, what, patience_s=180)


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    journal = ["journalctl", "--no-pager", "-n", "60"]
    assert done.returncode == 0, (
        done.stderr + subprocess.run(journal, capture_output=True, text=True).stdout
    )
    return done.stdout


def shown(name: str, unit: str = DAEMON) -> str:
    return systemctl("show", "--value", "-p", name, unit).strip()


def main_pid() -> int:
    return int(shown("MainPID"))


def group_file(sandbox: Sandbox, name: str) -> str:
    return (GROUPS / sandbox.sandbox_id / name).read_text().strip()


def waited(command: str, sandbox: Sandbox) -> str:
    return sandbox.commands.run(command).stdout.strip()


def daemon_answers() -> bool:
    """Asks, which starts a daemon where none runs."""
    with Daemon() as daemon:
        try:
            daemon.check_health()
        except VenusError:
            return False
    return True


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """As docs/operations.md says, but for a smaller storage and a more impatient watchdog."""
    subprocess.run([sys.executable, "-m", "sandboxd.systemd.install"], check=True)
    subprocess.run(["systemd-sysusers"], check=True)
    Path("/etc/venus").mkdir()
    Path("/etc/venus/sandboxd.toml").write_text(f"storage_size_bytes = {2 << 30}\n")
    drop_in = Path(f"/etc/systemd/system/{DAEMON}.d/watchdog.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nWatchdogSec=20s\n")
    systemctl("daemon-reload")


@pytest.fixture(scope="module")
def sandbox(installed: None) -> Sandbox:
    """One for all tests, which ends with the units."""
    return Sandbox.create(memory_bytes=128 * MIB, pids=40, cpu_cores=0.5)


def test_the_hierarchy_is_version_2_alone() -> None:
    kinds = {line.split()[2] for line in Path("/proc/self/mounts").read_text().splitlines()}
    assert "cgroup2" in kinds
    assert "cgroup" not in kinds


def test_the_first_client_starts_the_daemon() -> None:
    systemctl("start", SOCKET)
    assert shown("ActiveState") == "inactive"
    assert oct(Path("/run/venus/sandboxd.sock").stat().st_mode & 0o777) == "0o660"
    eventually(daemon_answers, "no daemon answers")
    assert shown("ActiveState") == "active"
    with Daemon() as daemon:
        with open(os.environ["VENUS_BASE_TAR"], "rb") as tar:
            daemon.import_image_tar("base", tar)
    assert shown("StatusText") == "0 sandboxes, 0 templates"
    assert shown("Type") == "notify"


def test_the_units_are_as_systemd_wants_them() -> None:
    units = [f"/etc/systemd/system/{name}" for name in (DAEMON, SANDBOXES, SOCKET)]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_limits_are_those_of_the_kernel(sandbox: Sandbox) -> None:
    assert waited("echo $((6 * 7))", sandbox) == "42"
    assert group_file(sandbox, "memory.max") == str(128 * MIB)
    assert group_file(sandbox, "memory.swap.max") == "0"
    assert group_file(sandbox, "pids.max") == "41"
    assert group_file(sandbox, "cpu.max") == "50000 100000"
    assert group_file(sandbox, "cgroup.procs") == ""
    assert len(group_file(sandbox, "init/cgroup.procs").split()) == 1
    assert waited("cat /proc/self/cgroup", sandbox).startswith("0::/../exec-")


def test_processes_are_bounded(sandbox: Sandbox) -> None:
    program = (
        "import os\ncount = 0\n"
        "try:\n"
        "    for _ in range(100):\n"
        "        if os.fork() == 0: os.read(0, 1)\n"
        "        count += 1\n"
        "except BlockingIOError: print(count)\n"
    )
    result = sandbox.commands.run(["python3", "-c", program], stdin=True, background=True)
    eventually(lambda: sandbox.metrics().pids == 40, "it has no 40 processes")
    result.kill()


def test_out_of_memory_is_told(sandbox: Sandbox) -> None:
    with Daemon() as daemon, daemon.events(sandbox_id=sandbox.sandbox_id) as events:
        result = sandbox.commands.run("tail /dev/zero", check=False)
        told = next(event for event in events if event.type == "oom")
    assert result.exit.reason is ExitReason.OOM
    assert told.details["exec_id"] is not None
    assert "oom_kill 1" in group_file(sandbox, "memory.events").splitlines()
    assert sandbox.metrics().memory_peak_bytes <= 128 * MIB


def test_paused_is_frozen(sandbox: Sandbox) -> None:
    busy = sandbox.commands.run("while :; do :; done", background=True)
    sandbox.pause()
    assert "frozen 1" in group_file(sandbox, "cgroup.events")
    before_s = sandbox.metrics().cpu_s
    systemctl("is-active", DAEMON)
    assert sandbox.metrics().cpu_s == before_s
    sandbox.resume()
    eventually(lambda: sandbox.metrics().cpu_s > before_s, "it does not go on")
    busy.kill()


def test_a_killed_command_takes_its_whole_tree(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("setsid sleep 1000 & sleep 1000", background=True)
    eventually(lambda: sandbox.metrics().pids == 3, "it has no three processes")
    handle.kill()
    eventually(lambda: sandbox.metrics().pids == 0, "processes are left")


def test_forks_pay_for_what_they_write(sandbox: Sandbox) -> None:
    held = f"x = bytearray({32 * MIB}); x[::4096] = b'1' * {32 * MIB // 4096}"
    program = f"import sys\n{held}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    with Sandbox.create(memory_bytes=256 * MIB) as original:
        original.files.write("/root/held.py", program)
        handle = original.commands.start("python3 /root/held.py", stdin=True)
        eventually(
            lambda: original.commands.output(handle.exec_id) == b"ready\n", "it is not ready"
        )
        assert original.metrics().private_bytes > 32 * MIB
        [fork] = original.fork()
        with fork:
            assert waited("pgrep -c python3", fork) == "1"
            assert fork.metrics().private_bytes < 16 * MIB
            assert fork.metrics().shared_bytes > 32 * MIB
        template = original.snapshot()
        [later] = template.fork()
        with later:
            assert waited("pgrep -c python3", later) == "1"
        template.remove()


def test_what_systemd_keeps_from_the_devices_of_the_host(sandbox: Sandbox) -> None:
    procs = GROUPS / sandbox.sandbox_id / "init" / "cgroup.procs"
    script = f"echo $$ >{procs} && head -c 1 /dev/urandom >/dev/null && exec 3</dev/kmsg"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert "Operation not permitted" in done.stderr


def test_limits_of_all_sandboxes_are_those_of_their_unit(sandbox: Sandbox) -> None:
    systemctl("set-property", "--runtime", SANDBOXES, "MemoryMax=2G")
    assert (GROUPS.parent / "memory.max").read_text() == f"{2 << 30}\n"
    holder = (GROUPS.parent / "holder" / "cgroup.procs").read_text()
    assert holder.split() == [shown("MainPID", SANDBOXES)]


def test_sandboxes_are_killed_before_the_daemon(sandbox: Sandbox) -> None:
    assert Path(f"/proc/{main_pid()}/oom_score_adj").read_text() == "-900\n"
    assert waited("cat /proc/1/oom_score_adj", sandbox) == "0"
    assert waited("cat /proc/self/oom_score_adj", sandbox) == "500"
    lowered = sandbox.commands.run("echo -1 >/proc/self/oom_score_adj", check=False)
    assert lowered.exit.exit_code != 0


def test_a_reload_changes_nothing(sandbox: Sandbox) -> None:
    pid = main_pid()
    systemctl("reload", DAEMON)
    assert waited("echo on", sandbox) == "on"
    assert main_pid() == pid


def counted(sandbox: Sandbox, handle: CommandInfo) -> int:
    return int((sandbox.commands.output(handle.exec_id).split() or [b"0"])[-1])


def living_on(sandbox: Sandbox, end: Callable[[int], None]) -> None:
    """Ends the daemon while a command counts; another one must go on with it."""
    pid = main_pid()
    handle = sandbox.commands.start(COUNTING)
    eventually(lambda: counted(sandbox, handle) > 2, "it does not count")
    inside = {int(word) for word in group_file(sandbox, "init/cgroup.procs").split()}
    end(pid)
    eventually(lambda: main_pid() not in (0, pid), "no other daemon was started")
    eventually(daemon_answers, "the other daemon does not answer")
    assert sandbox.get_info().state is SandboxState.RUNNING
    before = counted(sandbox, handle)
    eventually(lambda: counted(sandbox, handle) > before, "it counts no more")
    assert {int(word) for word in group_file(sandbox, "init/cgroup.procs").split()} == inside
    sandbox.commands.kill(exec_id=handle.exec_id)


def test_sandboxes_outlive_a_restart_of_the_unit(sandbox: Sandbox) -> None:
    living_on(sandbox, lambda pid: systemctl("restart", DAEMON))
    assert shown("NRestarts") == "0"


def test_sandboxes_outlive_a_stop_of_the_unit(sandbox: Sandbox) -> None:
    def stop_and_ask(pid: int) -> None:
        systemctl("stop", DAEMON)
        assert shown("Result") == "success"
        eventually(daemon_answers, "no daemon answers")

    living_on(sandbox, stop_and_ask)


def test_sandboxes_outlive_a_crash(sandbox: Sandbox) -> None:
    living_on(sandbox, lambda pid: os.kill(pid, 9))
    assert shown("NRestarts") == "1"


def test_a_daemon_that_hangs_is_replaced(sandbox: Sandbox) -> None:
    living_on(sandbox, lambda pid: os.kill(pid, 19))
    assert shown("NRestarts") == "2"


def test_the_end_of_the_sandboxes_unit_is_the_end_of_all(sandbox: Sandbox) -> None:
    sandbox.commands.start(COUNTING)
    systemctl("stop", SANDBOXES)
    assert shown("Result", SANDBOXES) == "success"
    assert not GROUPS.exists()
    eventually(daemon_answers, "no daemon answers")
    with Daemon() as daemon:
        assert daemon.info().sandboxes == 0
    with pytest.raises(VenusError):
        sandbox.commands.run("true")


def test_an_idle_daemon_leaves_nothing() -> None:
    systemctl("stop", DAEMON, SOCKET)
    assert not GROUPS.exists()
    assert "/var/lib/venus" not in Path("/proc/self/mounts").read_text()
    assert [path.name for path in Path("/run/venus").iterdir()] == []
