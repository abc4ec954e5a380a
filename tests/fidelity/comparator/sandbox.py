"""Everything that can be seen of a stopped sandbox, as one record.

Called on the thread that has stopped it (ptrace belongs to a thread), and reads its own /proc, in
which pids are those inside.
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fidelity.comparator import kernel, proc_text
from tests.fidelity.comparator.descriptors import descriptor_fields, sharing
from tests.fidelity.comparator.memory import read_memory
from tests.fidelity.comparator.network import network_fields
from tests.fidelity.comparator.record import Record

# Read in another way (memory.py, descriptors.py, network.py), or not made for reading.
_ELSEWHERE = frozenset(
    {
        "task", "fd", "fdinfo", "map_files", "net", "ns", "mem", "pagemap", "maps", "smaps",
        "numa_maps", "clear_refs", "mountstats", "attr",
    }
)  # fmt: skip
_LINKS = ("cwd", "root", "exe")
_TABLES = {"address space": 1, "descriptors": 2, "directories": 3, "signal actions": 4,
           "I/O context": 5, "semaphore undo": 6}  # fmt: skip
_SYSTEM_V = ("shm", "sem", "msg")


def _numbers(directory: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(directory) if name.isdigit())


def _inner_pids(init: int) -> dict[int, int]:
    """Pid on the host → pid inside, of all threads of the sandbox."""
    depth = len(_ids(Path(f"/proc/{init}/status")))
    namespace = os.stat(f"/proc/{init}/ns/pid").st_ino
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            ids = _ids(process / "status")
            if len(ids) < depth or os.stat(process / "ns/pid").st_ino != namespace:
                continue
            for thread in (process / "task").iterdir():
                found[int(thread.name)] = _ids(thread / "status")[depth - 1]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _ids(status: Path) -> list[int]:
    for line in status.read_text().splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    raise AssertionError(f"{status} has no NSpid")


def _is_zombie(process: Path) -> bool:
    return "\nState:\tZ" in (process / "status").read_text()


class _Recorder:
    def __init__(self, init: int) -> None:
        self.record = Record()
        self._init = init
        self._proc = Path(f"/proc/{init}/root/proc")
        self._inner = _inner_pids(init)
        self._host = {inner: host for host, inner in self._inner.items()}
        self._group = self._own_group()
        self._mounts = self._mount_points()

    def _own_group(self) -> str:
        """The part of the path of its control group that no other sandbox has."""
        path = Path(f"/proc/{self._init}/cgroup").read_text().split(":")[-1].strip()
        return path.removesuffix("/init").removesuffix("/")

    def _mount_points(self) -> dict[str, str]:
        lines = (self._proc / "1" / "mountinfo").read_text().splitlines()
        return {line.split()[0]: line.split()[4] for line in lines}

    def all(self) -> Record:
        start = time.monotonic()
        pids = [pid for pid in _numbers(self._proc) if pid != 1]
        descriptors: dict[int, tuple[int, list[int]]] = {}
        for pid in pids:
            process = self._proc / str(pid)
            owner = f"pid {pid}"
            if _is_zombie(process):
                self._files(f"zombie {pid}", "zombie", process)
                continue
            self._files(owner, "process", process)
            self._links(owner, process)
            threads = _numbers(process / "task")
            self.record.memory[owner] = read_memory(process, self._cpu_numbers(pid, pids))
            self.record.add(owner, "process/plan mappings", len(self.record.memory[owner].plans))
            numbers = _numbers(process / "fd")
            descriptors[pid] = (self._host[pid], numbers)
            self._descriptors(owner, process, pid, numbers)
            for tid in threads:
                self._thread(f"{owner} thread {tid}", process / "task" / str(tid), pid, tid)
        for pid, number, same in sharing(descriptors):
            self.record.add(f"pid {pid} fd {number}", "fd/open file", same)
        self._tables(list(descriptors))
        self._whole()
        self.record.took_ms = (time.monotonic() - start) * 1000
        return self.record

    def _cpu_numbers(self, pid: int, pids: list[int]) -> list[tuple[int, int]]:
        """Where the kernel tells each thread of this memory on which CPU it runs (struct rseq)."""
        threads = [
            tid
            for other in pids
            if other == pid
            or kernel.shares(_TABLES["address space"], (self._host[pid], 0), (self._host[other], 0))
            for tid in _numbers(self._proc / str(other) / "task")
        ]
        areas = []
        for tid in threads:
            address = int.from_bytes(kernel.rseq(self._host[tid])[:8], "little")
            if address:
                areas += [(address, 8), (address + 20, 8)]
        return areas

    def _files(self, owner: str, kind: str, directory: Path) -> None:
        for name in sorted(os.listdir(directory)):
            if name in _ELSEWHERE or name in _LINKS:
                continue
            path = directory / name
            if path.is_dir() or not path.stat().st_mode & 0o444:
                continue
            try:
                content = path.read_bytes()
            except OSError as error:
                self.record.add(owner, f"{kind}/{name}", f"error {error.errno}")
                continue
            content = content.replace(self._group.encode(), b"/its-group")
            for key, value in proc_text.parse(name, content):
                self.record.add(owner, f"{kind}/{key}", value)

    def _links(self, owner: str, process: Path) -> None:
        for name in _LINKS:
            self.record.add(owner, f"process/{name}", os.readlink(process / name))
        for name in sorted(os.listdir(process / "ns")):
            same = os.readlink(process / "ns" / name) == os.readlink(self._proc / "1" / "ns" / name)
            self.record.add(owner, f"process/ns/{name}", "of init" if same else "another")

    def _descriptors(self, owner: str, process: Path, pid: int, numbers: list[int]) -> None:
        pidfd = os.pidfd_open(self._host[pid])
        try:
            for number in numbers:
                for key, value in descriptor_fields(
                    process, pidfd, number, self.record.names, self._mounts, self._inner
                ):
                    self.record.add(f"{owner} fd {number}", f"fd/{key}", value)
        finally:
            os.close(pidfd)

    def _thread(self, owner: str, directory: Path, pid: int, tid: int) -> None:
        host = self._host[tid]
        self._files(owner, "thread", directory)
        add = self.record.add
        for name, value in kernel.registers(host).items():
            add(owner, f"thread/registers/{name}", value)
        state = kernel.xstate(host)
        # Which parts of it the CPU takes for unused; their content is there in any case.
        add(owner, "thread/xstate", state[:512] + bytes(8) + state[520:])
        add(owner, "thread/signal mask", kernel.signal_mask(host))
        add(owner, "thread/pending", tuple(self._signals(host, False)))
        if tid == pid:
            add(f"pid {pid}", "process/pending", tuple(self._signals(host, True)))
        add(owner, "thread/rseq", kernel.rseq(host))
        add(owner, "thread/robust list", kernel.robust_list(host))
        for index, program in enumerate(reversed(list(kernel.seccomp_filters(host)))):
            add(owner, f"thread/seccomp/newest but {index}", program)
        for name, number in kernel.scheduling(host).items():
            add(owner, f"thread/scheduling/{name}", number)
        add(owner, "thread/I/O priority", kernel.io_priority(host))
        add(owner, "thread/affinity", tuple(sorted(os.sched_getaffinity(host))))

    def _signals(self, host: int, of_process: bool) -> Iterator[bytes]:
        for info in kernel.pending_signals(host, of_process):
            # Of kill(), queue and SIGCHLD the sender comes first behind the code.
            number, _, code, _, pid = struct.unpack_from("5i", info)
            if code <= 0 or number == 17:
                info = info[:16] + struct.pack("i", self._inner.get(pid, pid)) + info[20:]
            yield info

    def _tables(self, pids: list[int]) -> None:
        for table, number in _TABLES.items():
            for index, pid in enumerate(pids):
                host = (self._host[pid], 0)
                same = next(
                    (
                        other
                        for other in pids[:index]
                        if kernel.shares(number, host, (self._host[other], 0))
                    ),
                    pid,
                )
                self.record.add(f"pid {pid}", f"process/shares {table}", f"that of pid {same}")

    def _whole(self) -> None:
        for key, value in network_fields(self._proc / "1" / "net", self.record.names):
            self.record.add("sandbox", f"network/{key}", value)
        for name in _SYSTEM_V:
            text = subprocess.run(
                ["nsenter", "--ipc", f"--target={self._init}", "cat", f"/proc/sysvipc/{name}"],
                stdout=subprocess.PIPE, text=True, check=True,
            ).stdout  # fmt: skip
            titles, *lines = (line.split() for line in text.splitlines())
            for words in lines:
                object_id = f"{name} {words[1]}"
                for title, word in zip(titles, words, strict=True):
                    self.record.add("sandbox", f"system-v/{name}/{title}", (object_id, word))


def record_sandbox(init: int) -> Record:
    return _Recorder(init).all()
