"""What the daemon says about memory is what the kernel says, for one sandbox and for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess
from tests.support.footprint import meminfo_kib

MIB = 1 << 20
TAKEN = 16 * MIB
WAIT = "print('held', flush=True)\nsys.stdin.read()\n"
HEADER = "import os, socket, sys\nkeep = []\n"
UDP = """
def udp():
    receiver, sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind(("127.0.0.1", 0))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sender.connect(receiver.getsockname())
    for _ in range(20): sender.send(bytes(9000))
    return receiver, sender
keep += [udp() for _ in range(50)]
"""
# Each holds about TAKEN.
PRIVATE = {
    "anonymous": f"keep.append(bytearray(os.urandom({TAKEN})))",
    "file in /tmp": f"open('/tmp/x', 'wb').write(os.urandom({TAKEN}))",
    "file in /dev/shm": f"open('/dev/shm/x', 'wb').write(os.urandom({TAKEN}))",
    "memory file": f"os.write(os.memfd_create('x'), os.urandom({TAKEN}))",
    "pipes": """
for _ in range(256):
    reader, writer = os.pipe()
    os.write(writer, bytes(65536))
""",
    "Unix sockets": """
for _ in range(96):
    pair = socket.socketpair()
    pair[0].setblocking(False)
    try:
        while True: pair[0].send(bytes(4096))
    except OSError: pass
    keep.append(pair)
""",
    "UDP sockets": UDP,
}
NOT_PRIVATE = {
    "page cache of the image": """
for directory, _, names in os.walk("/usr/lib"):
    for name in names:
        try:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while file.read(65536): pass
        except OSError: pass
""",
    "file on disk": f"open('/root/x', 'wb').write(os.urandom({TAKEN}))",
}


def grown_by(daemon: DaemonProcess, script: str) -> int:
    """Private bytes of a sandbox before and after what the script takes."""
    with Sandbox.create(socket=daemon.socket) as sandbox:
        program = HEADER + "print('started', flush=True)\nsys.stdin.readline()\n" + script + WAIT
        with sandbox.commands.run(["python3", "-c", program], True, stdin=True) as handle:
            output = iter(handle)
            assert next(output).data == b"started\n"
            before = sandbox.metrics().private_bytes
            handle.send_stdin("\n")
            assert next(output).data == b"held\n"
            after = sandbox.metrics().private_bytes
            with Daemon(daemon.socket) as client:
                assert client.info().private_bytes >= after
            handle.kill()
        return after - before


@pytest.mark.parametrize("kind", PRIVATE)
def test_what_only_a_sandbox_holds_is_private(daemon: DaemonProcess, kind: str) -> None:
    assert 0.9 * TAKEN < grown_by(daemon, PRIVATE[kind] + "\n") < 2 * TAKEN


@pytest.mark.parametrize("kind", NOT_PRIVATE)
def test_page_cache_is_not_private(daemon: DaemonProcess, kind: str) -> None:
    assert grown_by(daemon, NOT_PRIVATE[kind] + "\n") < TAKEN // 4


FORKS, TEMPLATE_BYTES = 64, 256 * MIB
ROUNDS = 4
# In each fork: memory of its own of several kinds, and a part of its template's, written. Of what
# pipes and sockets hold /proc/meminfo says nothing.
LOAD = f"""
import os, sys
memory = bytearray({TEMPLATE_BYTES})
for start in range(0, len(memory), 1 << 20):
    memory[start:start + (1 << 20)] = os.urandom(1 << 20)
print("ready", flush=True)
sys.stdin.readline()
memory[:{8 * MIB}] = os.urandom({8 * MIB})
own = bytearray(os.urandom({8 * MIB}))
open("/tmp/x", "wb").write(own)
shared = os.memfd_create("shared")
os.write(shared, own[:{4 * MIB}])
print("held", flush=True)
sys.stdin.read()
"""


def taken_kib() -> int:
    """Memory of the machine that is in use, page cache aside. Not from MemFree: for seconds after
    much was freed, each CPU keeps hundreds of MiB of it in lists of its own."""
    Path("/proc/sys/vm/drop_caches").write_text("2")  # dentries and inodes, which are in Slab
    return meminfo_kib(
        "AnonPages", "Shmem", "Slab", "KernelStack", "PageTables", "SecPageTables", "Percpu"
    )


def accounted_kib(daemon: DaemonProcess) -> int:
    with Daemon(daemon.socket) as client:
        info = client.info()
    return (info.pool_bytes + info.private_bytes) // 1024


@contextmanager
def loaded_forks(daemon: DaemonProcess) -> Iterator[list[Sandbox]]:
    with ExitStack() as stack:
        with Sandbox.create(socket=daemon.socket, memory_bytes=2 * TEMPLATE_BYTES) as sandbox:
            handle = sandbox.commands.run(["python3", "-c", LOAD], True, stdin=True)
            assert next(iter(handle)).data == b"ready\n"
            template = sandbox.snapshot()
            stack.callback(template.remove)
        forks: list[Sandbox] = []
        for _ in range(0, FORKS, 16):
            forks += [stack.enter_context(each) for each in template.fork(16)]
        for each in forks:
            each.commands.send_stdin(handle.exec_id, b"\n")
        for each in forks:
            eventually(
                lambda f=each: b"held" in f.commands.output(handle.exec_id),  # type: ignore[misc]
                "it does not take its memory",
                patience_s=60,
            )
        yield forks


@pytest.mark.timeout(600)
def test_the_sums_agree_with_the_machine(daemon: DaemonProcess) -> None:
    """Other programs of the machine take and give memory, too: a wrong account is wrong each time,
    so one agreement of several is enough."""
    seen = []
    for _ in range(ROUNDS):
        taken_before, accounted_before = taken_kib(), accounted_kib(daemon)
        with loaded_forks(daemon) as forks:
            taken = taken_kib() - taken_before
            accounted = accounted_kib(daemon) - accounted_before
            single = [each.metrics() for each in forks]
        # Those of single sandboxes, and the template's, are the same memory.
        in_parts = (single[0].shared_bytes + sum(each.private_bytes for each in single)) // 1024
        assert abs(in_parts - accounted) <= 0.03 * accounted, (in_parts, accounted)
        seen.append((taken, accounted))
        if abs(taken - accounted) <= 0.05 * taken:
            return
    pytest.fail(f"KiB taken of the machine, and accounted for: {seen}")
