"""Version 1 controllers, with a version 2 hierarchy beside them where one is mounted.

Each used controller has `<mount>/<parent>/<sandbox id>`. The version 2 hierarchy has no controllers
on such a machine, but it can kill a group by one write, which version 1 cannot: there the sandbox
has `<parent>/<id>/init` and `<parent>/<id>/exec-<n>` for each command.

All processes of a sandbox are descendants of init, so they inherit its version 1 groups; nothing in
a sandbox can see the files here, let alone write to them.

Does not handle: processes that an administrator moved out of the groups by hand.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator

from sandboxd.cgroups import fast_join
from sandboxd.cgroups.groups import CgroupLimits, ExecCgroup, GroupUsage
from sandboxd.cgroups.hierarchies import Hierarchies
from sandboxd.errors import Conflict, InternalError, LimitExceeded, errno_text

REQUIRED_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
CPU_PERIOD_US = 100_000
# What one process beside the group weighs. The sandboxes together get that for every CPU: the
# default of one share would let a single busy process of the host outweigh hundreds of them.
SHARES_PER_CPU = 1024
MINIMUM_QUOTA_US = 1_000
SOCKET_BUFFER_SHARE = 4
EMPTY_TIMEOUT_S = 10.0
FREEZE_TIMEOUT_S = 5.0
# null, zero, full, random, urandom, tty, ptmx and pseudo-terminals: what /dev of a sandbox has.
ALLOWED_DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*")


class HybridBackend:
    """A `CgroupBackend`."""

    def __init__(self, hierarchies: Hierarchies, parent: str) -> None:
        # As text: these paths are joined some thirty times for each sandbox and each command.
        self._parents = {
            name: f"{hierarchies.v1[name]}/{parent}" for name in (*REQUIRED_CONTROLLERS, "devices")
            if name in hierarchies.v1
        }  # fmt: skip
        self._unified = hierarchies.unified and f"{hierarchies.unified}/{parent}"
        self._tuned_hierarchy = hierarchies.unified or hierarchies.v1["pids"]
        self._tuned = False
        self._lock_fd = -1
        if self._unified is None and "cpuacct" in hierarchies.v1:
            self._parents["cpuacct"] = f"{hierarchies.v1['cpuacct']}/{parent}"

    # One directory per hierarchy: controllers that are mounted together share theirs.
    def _v1_parents(self) -> list[str]:
        return list(dict.fromkeys(self._parents.values()))

    def _all_parents(self) -> list[str]:
        return self._v1_parents() + ([self._unified] if self._unified else [])

    def prepare(self) -> None:
        # A parent that is there already was left by a killed daemon, and so was its tuning.
        killed_before = os.path.exists(self._parents["pids"])
        for parent in self._all_parents():
            os.makedirs(parent, exist_ok=True)
        self._lock()
        _write(f"{self._parents['cpu']}/cpu.shares", SHARES_PER_CPU * (os.cpu_count() or 1))
        self._tune(killed_before)
        devices = self._parents.get("devices")
        if devices is not None and not next(os.walk(devices))[1]:
            # Sandboxes' groups inherit it. Belt and braces: a user namespace can make no nodes.
            _write(f"{devices}/devices.deny", "a")
            for device in ALLOWED_DEVICES:
                _write(f"{devices}/devices.allow", f"c {device} rwm")

    def _lock(self) -> None:
        """Keeps other daemons out, which would take these groups for a dead one's."""
        if self._lock_fd >= 0:
            return
        parent = self._parents["pids"]
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(
                "another daemon uses this group",
                operation="prepare groups",
                object=parent,
                cause="its lock is held; a second daemon needs a cgroup_parent of its own",
            ) from None
        self._lock_fd = descriptor

    def _tune(self, killed_before: bool) -> None:
        with contextlib.suppress(OSError):  # joins are slower on a kernel without the option
            if not fast_join.is_enabled(self._tuned_hierarchy):
                fast_join.enable(self._tuned_hierarchy)
                self._tuned = True
            self._tuned = self._tuned or killed_before

    def close(self) -> None:
        if self._tuned:
            fast_join.disable(self._tuned_hierarchy)
            self._tuned = False
        for parent in self._all_parents():
            try:
                os.rmdir(parent)
            except OSError as error:
                # Groups of sandboxes that live on are the next daemon's.
                if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                    raise
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def create(self, sandbox_id: str, limits: CgroupLimits) -> None:
        for parent in self._v1_parents():
            _make_group(f"{parent}/{sandbox_id}")
        memory = f"{self._parents['memory']}/{sandbox_id}"
        _write(f"{memory}/memory.limit_in_bytes", limits.memory_bytes)
        try:
            # Memory and swap together, set to the same: no swap. Must not be set first.
            _write(f"{memory}/memory.memsw.limit_in_bytes", limits.memory_bytes)
        except FileNotFoundError:  # the kernel does not account for swap
            _write(f"{memory}/memory.swappiness", 0)
        # Buffers of network sockets are not in the memory limit, and without a limit of their own
        # not accounted at all. (Those of Unix sockets are in the memory limit.)
        with contextlib.suppress(FileNotFoundError):
            _write(
                f"{memory}/memory.kmem.tcp.limit_in_bytes",
                limits.memory_bytes // SOCKET_BUFFER_SHARE,
            )
        # The limit is the user's: init does not count.
        _write(f"{self._parents['pids']}/{sandbox_id}/pids.max", limits.pids + 1)
        cpu = f"{self._parents['cpu']}/{sandbox_id}"
        quota_us = max(MINIMUM_QUOTA_US, round(limits.cpu_cores * CPU_PERIOD_US))
        _write(f"{cpu}/cpu.cfs_quota_us", quota_us)
        if self._unified is not None:
            _make_group(f"{self._unified}/{sandbox_id}")
            _make_group(f"{self._unified}/{sandbox_id}/init")

    def open_init_procs(self, sandbox_id: str) -> list[int]:
        groups = [f"{parent}/{sandbox_id}" for parent in self._v1_parents()]
        if self._unified is not None:
            groups.append(f"{self._unified}/{sandbox_id}/init")
        descriptors: list[int] = []
        try:
            for group in groups:
                descriptors.append(_open_for_writing(f"{group}/cgroup.procs"))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return descriptors

    def open_exec(self, sandbox_id: str, exec_id: int) -> ExecCgroup:
        if self._unified is None:
            return ExecCgroup([], None)
        group = self._exec_group(sandbox_id, exec_id)
        _make_group(group)
        opened = ExecCgroup([], None)
        try:
            opened.procs_fds.append(_open_for_writing(f"{group}/cgroup.procs"))
            # Linux before 5.14 has no such file.
            with contextlib.suppress(FileNotFoundError):
                opened.kill_fd = _open_for_writing(f"{group}/cgroup.kill")
        except BaseException:
            opened.close()
            os.rmdir(group)
            raise
        return opened

    def remove_exec(self, sandbox_id: str, exec_id: int) -> bool:
        if self._unified is None:
            return True
        try:
            os.rmdir(self._exec_group(sandbox_id, exec_id))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    def exec_ids(self, sandbox_id: str) -> list[int]:
        if self._unified is None:
            return []
        names = (entry.name for entry in os.scandir(f"{self._unified}/{sandbox_id}"))
        return [int(name[len("exec-") :]) for name in names if name.startswith("exec-")]

    def _exec_group(self, sandbox_id: str, exec_id: int) -> str:
        assert self._unified is not None
        return f"{self._unified}/{sandbox_id}/exec-{exec_id:d}"

    def contains(self, sandbox_id: str, pid: int) -> bool:
        return pid in _pids(f"{self._parents['pids']}/{sandbox_id}")

    def usage(self, sandbox_id: str) -> GroupUsage:
        memory = f"{self._parents['memory']}/{sandbox_id}"
        return GroupUsage(
            memory_bytes=_read_number(f"{memory}/memory.usage_in_bytes"),
            memory_peak_bytes=_read_number(f"{memory}/memory.max_usage_in_bytes"),
            private_bytes=_private_bytes(memory),
            cpu_s=self._cpu_s(sandbox_id),
            pids=max(0, _read_number(f"{self._parents['pids']}/{sandbox_id}/pids.current") - 1),
            oom_kills=self.oom_kills(sandbox_id),
        )

    def private_bytes(self) -> int:
        return _private_bytes(self._parents["memory"])

    def oom_kills(self, sandbox_id: str) -> int:
        return _read_field(f"{self._parents['memory']}/{sandbox_id}/memory.oom_control", "oom_kill")

    def _cpu_s(self, sandbox_id: str) -> float:
        if self._unified is not None:
            return _read_field(f"{self._unified}/{sandbox_id}/cpu.stat", "usage_usec") / 1e6
        if "cpuacct" in self._parents:
            return _read_number(f"{self._parents['cpuacct']}/{sandbox_id}/cpuacct.usage") / 1e9
        return 0.0

    def set_frozen(self, sandbox_id: str, frozen: bool) -> None:
        state_file = f"{self._parents['freezer']}/{sandbox_id}/freezer.state"
        wanted = "FROZEN" if frozen else "THAWED"
        _write(state_file, wanted)
        # FREEZING lasts until every process has come out of the kernel; reading pushes it on.
        for _ in _patiently(FREEZE_TIMEOUT_S):
            if _read(state_file).strip() == wanted:
                return
        raise InternalError(
            "the processes could not be stopped",
            operation="freeze",
            object=sandbox_id,
            cause=f"still {_read(state_file).strip()} after {FREEZE_TIMEOUT_S} s",
        )

    def destroy(self, sandbox_id: str) -> None:
        # A frozen process of version 1 does not die before it is thawed.
        with contextlib.suppress(FileNotFoundError):
            _write(f"{self._parents['freezer']}/{sandbox_id}/freezer.state", "THAWED")
        self._kill_all(sandbox_id)
        if self._unified is not None:
            group = f"{self._unified}/{sandbox_id}"
            _wait_unpopulated(group)
            with contextlib.suppress(FileNotFoundError):
                for child in os.scandir(group):
                    if child.is_dir():
                        _remove_when_empty(child.path)
            _remove_when_empty(group)
        for parent in self._v1_parents():
            _remove_when_empty(f"{parent}/{sandbox_id}")

    def _kill_all(self, sandbox_id: str) -> None:
        if self._unified is not None:
            with contextlib.suppress(FileNotFoundError):
                _write(f"{self._unified}/{sandbox_id}/cgroup.kill", 1)
        group = f"{self._parents['pids']}/{sandbox_id}"
        for _ in _patiently(EMPTY_TIMEOUT_S):
            pids = _pids(group)
            if not pids:
                return
            for pid in pids:
                _kill_member(pid, group)
        raise InternalError(
            "processes survive SIGKILL",
            operation="destroy groups",
            object=sandbox_id,
            cause=f"pids {sorted(_pids(group))[:10]} after {EMPTY_TIMEOUT_S} s",
        )

    def names(self) -> set[str]:
        found: set[str] = set()
        for parent in self._all_parents():
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(parent) if entry.is_dir()}
        return found


def _make_group(path: str) -> None:
    try:
        os.mkdir(path)
    except OSError as error:
        # EAGAIN: there are as many groups as there may be. ENOSPC: the kernel numbers no further.
        if error.errno not in (errno.EAGAIN, errno.ENOSPC, errno.ENOMEM):
            raise
        raise LimitExceeded(
            "the kernel has no room for another group",
            operation="make group",
            object=path,
            cause=errno_text(error.errno),
        ) from error


def _write(path: str, value: str | int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        raise InternalError(
            f"the kernel refuses the value {value}",
            operation="write cgroup file",
            object=path,
            cause=errno_text(error.errno or 0),
        ) from error
    finally:
        os.close(descriptor)


def _open_for_writing(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def _read(path: str) -> str:
    # By hand: one is read for each command, and a file object costs more than the reading.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, 1 << 16):
            content += piece
        return content.decode()
    finally:
        os.close(descriptor)


def _private_bytes(memory: str) -> int:
    # What is charged to the group and those below it: of a sandbox's, there are none.
    fields = _read_fields(f"{memory}/memory.stat")
    counted = fields["total_rss"] + fields["total_shmem"]
    # A kernel may be built, or started, without accounting for its own memory. Buffers of network
    # sockets are not in it.
    for kind in ("kmem", "kmem.tcp"):
        with contextlib.suppress(FileNotFoundError):
            counted += _read_number(f"{memory}/memory.{kind}.usage_in_bytes")
    return counted


def _read_number(path: str) -> int:
    return int(_read(path))


def _read_fields(path: str) -> dict[str, int]:
    """Lines of a name and a number, as the files of statistics have."""
    pairs = (line.split(" ", 1) for line in _read(path).splitlines())
    return {name: int(value) for name, value in pairs}


def _read_field(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise InternalError("a field is missing", operation="read cgroup file", object=path, cause=name)


def _pids(group: str) -> set[int]:
    try:
        return {int(line) for line in _read(f"{group}/cgroup.procs").split()}
    except (FileNotFoundError, OSError) as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):  # removed before or while reading
            return set()
        raise


def _kill_member(pid: int, group: str) -> None:
    """SIGKILL to a process of the group, and to no other one that got its pid meanwhile."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in _pids(group):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def _patiently(timeout_s: float) -> Iterator[None]:
    """Once at once, then again and again at growing distance until the time is over.

    For what version 1 has no event for. The first looks are close together, because the usual
    case needs none or one.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0002
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def _wait_unpopulated(group: str) -> None:
    """Wait until no process is left in a version 2 group or below; the kernel notifies."""
    try:
        events_fd = os.open(f"{group}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        poll = select.poll()
        poll.register(events_fd, select.POLLPRI)
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while b"populated 0" not in os.pread(events_fd, 256, 0):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise InternalError(
                    "processes survive SIGKILL",
                    operation="destroy groups",
                    object=group,
                    cause=f"still populated after {EMPTY_TIMEOUT_S} s",
                )
            poll.poll(left_s * 1000)
    finally:
        os.close(events_fd)


def _remove_when_empty(group: str) -> None:
    """rmdir, patient with processes that are dead but not yet out of the group."""
    for _ in _patiently(EMPTY_TIMEOUT_S):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return
    raise InternalError(
        "the group cannot be removed",
        operation="destroy groups",
        object=group,
        cause=errno_text(errno.EBUSY),
    )
