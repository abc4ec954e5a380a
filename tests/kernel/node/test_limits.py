"""Every limit of a sandbox, reached from inside and seen from outside."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

from sandboxd.launch import Launcher
from tests.kernel.node.harness import DEFAULT_LIMITS, MIB, running_box
from tests.support.groups import may_swap


def test_out_of_memory_is_counted_and_init_survives(launcher: Launcher, probe_binary: Path) -> None:
    limits = replace(DEFAULT_LIMITS, memory_bytes=64 * MIB)
    with running_box(launcher, limits) as box:
        box.install_probe(probe_binary)
        assert box.launched.oom_kills() == 0
        assert box.probe("touch", 16) == "touched"
        done = box.run("/usr/bin/probe", "touch", "512")
        assert (done.exited.signal, done.stdout) == (9, b"")
        assert box.launched.oom_kills() >= 1
        usage = box.launched.usage()
        assert 32 * MIB < usage.memory_peak_bytes <= 64 * MIB
        assert box.output("echo alive") == "alive"


def test_a_full_tmpfs_is_no_space_and_not_out_of_memory(launcher: Launcher) -> None:
    with running_box(launcher, replace(DEFAULT_LIMITS, memory_bytes=64 * MIB)) as box:
        for directory in ("/tmp", "/dev/shm", "/run"):
            done = box.shell(f"head -c 1G /dev/zero > {directory}/fill; rm {directory}/fill; false")
            assert b"No space left" in done.stderr, directory
        done = box.run(
            "python3", "-c",
            "import errno\n"
            "try:\n"
            "    for number in range(10**6): open(f'/tmp/{number}', 'w').close()\n"
            "except OSError as error: print(errno.errorcode[error.errno])",
        )  # fmt: skip
        assert done.stdout == b"ENOSPC\n"
        assert box.launched.oom_kills() == 0


def test_processes_are_bounded(launcher: Launcher, probe_binary: Path) -> None:
    with running_box(launcher, replace(DEFAULT_LIMITS, pids=20)) as box:
        box.install_probe(probe_binary)
        out = box.probe("forks", 100)
        count, error = map(int, out.split())
        assert error == errno.EAGAIN
        assert count == 19  # and the probe itself
        assert box.launched.usage().pids <= 20


def test_cpu_time_is_bounded(launcher: Launcher) -> None:
    with running_box(launcher, replace(DEFAULT_LIMITS, cpu_cores=0.25)) as box:
        before_s, began = box.launched.usage().cpu_s, time.monotonic()
        box.run("python3", "-c", "import time\nend = time.monotonic() + 1.5\n"
                                 "while time.monotonic() < end: pass")  # fmt: skip
        used_s, elapsed_s = box.launched.usage().cpu_s - before_s, time.monotonic() - began
        # One period of 100 ms may begin with a full quota.
        assert 0 < used_s <= 0.25 * elapsed_s + 0.05


def test_disk_is_bounded_through_the_overlay(launcher: Launcher) -> None:
    with running_box(launcher, replace(DEFAULT_LIMITS, disk_bytes=32 * MIB)) as box:
        done = box.shell("head -c 1G /dev/zero > /root/fill; stat -c %s /root/fill")
        assert b"quota exceeded" in done.stderr
        assert 16 * MIB < int(done.stdout) <= 32 * MIB
        assert box.output("rm /root/fill && echo small > /root/x && cat /root/x") == "small"


def test_a_disk_limit_holds_for_each_alone(launcher: Launcher) -> None:
    small = replace(DEFAULT_LIMITS, disk_bytes=16 * MIB)
    with running_box(launcher, small) as first, running_box(launcher) as second:
        assert first.shell("head -c 64M /dev/zero > /root/fill").code != 0
        assert second.shell("head -c 64M /dev/zero > /root/fill").code == 0


def test_swap_is_never_added_to_memory(launcher: Launcher) -> None:
    with running_box(launcher) as box:
        assert not may_swap(launcher._config.cgroup_parent, box.sandbox_id)


def test_usage_of_an_idle_sandbox(launcher: Launcher) -> None:
    with running_box(launcher) as box:
        usage = box.launched.usage()
        assert usage.pids == 0
        assert 0 < usage.memory_bytes < 16 * MIB
        assert usage.oom_kills == 0
        assert usage.disk_bytes is not None
