"""Snapshots, forks and templates through the daemon: what goes on, is separate, is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import (
    InvalidRequest,
    NotFound,
    SandboxGone,
    SnapshotRefused,
    VenusError,
)
from tests.support.daemon import DaemonProcess

# Adds each line of its input to what it holds in memory and in a file, and tells both.
PROGRAM = """
import os, sys, zlib
ballast = os.urandom(4 << 20)
digest = zlib.crc32(ballast)
told = []
print("ready", flush=True)
for line in sys.stdin:
    told.append(line.strip())
    with open("/root/told", "a") as out:
        out.write(line)
    words = open("/root/told").read().split()
    print(*told, "|", *words, "|", zlib.crc32(ballast) == digest, flush=True)
"""
Answer = tuple[list[str], list[str], bool]


def parsed(line: str) -> Answer:
    memory, file, whole = line.split("|")
    return memory.split(), file.split(), whole.strip() == "True"


class Teller:
    """The command of PROGRAM in one sandbox."""

    def __init__(self, sandbox: Sandbox, exec_id: int) -> None:
        self.sandbox = sandbox
        self.exec_id = exec_id
        self._answers = 0

    def tell(self, word: str) -> Answer:
        """What it holds in memory and in its file after hearing one more word."""
        self.sandbox.commands.send_stdin(self.exec_id, f"{word}\n".encode())
        self._answers += 1
        for _ in eventually("no answer"):
            lines = self.sandbox.commands.output(self.exec_id).decode().splitlines()
            if len(lines) >= self._answers:
                return parsed(lines[self._answers - 1])
        raise AssertionError


def eventually(what: str, patience_s: float = 20.0) -> Iterator[None]:
    """Again and again; fails when it takes too long."""
    deadline = time.monotonic() + patience_s
    while True:
        yield
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def start_teller(sandbox: Sandbox) -> int:
    """PROGRAM runs and is ready; its client stays until the sandbox goes."""
    handle = sandbox.commands.run(["python3", "-c", PROGRAM], True, stdin=True)
    assert next(iter(handle)).data == b"ready\n"
    sandbox.handle = handle  # type: ignore[attr-defined]
    return handle.exec_id


def original_tell(sandbox: Sandbox, word: str) -> Answer:
    """As `Teller.tell`, for the one whose output has a client."""
    handle = sandbox.handle  # type: ignore[attr-defined]
    handle.send_stdin(f"{word}\n")
    return parsed(next(iter(handle)).data.decode())


def test_forks_go_on_and_are_separate(sandbox: Sandbox) -> None:
    exec_id = start_teller(sandbox)
    assert original_tell(sandbox, "before") == (["before"], ["before"], True)
    forks = sandbox.fork(3, metadata={"kind": "fork"})
    try:
        assert original_tell(sandbox, "after") == (["before", "after"], ["before", "after"], True)
        tellers = [Teller(fork, exec_id) for fork in forks]
        for index, teller in enumerate(tellers):
            heard = ["before", f"fork-{index}"]
            assert teller.tell(f"fork-{index}") == (heard, heard, True)
        for index, teller in enumerate(tellers):
            heard = ["before", f"fork-{index}", "again"]
            assert teller.tell("again") == (heard, heard, True)
        assert original_tell(sandbox, "last")[0] == ["before", "after", "last"]
        for fork in forks:
            assert fork.info.labels == {"kind": "fork"}
            assert [each.pid for each in fork.commands.list()] == [
                each.pid for each in sandbox.commands.list()
            ]
    finally:
        for fork in forks:
            fork.kill()
    assert original_tell(sandbox, "alone")[2]


def test_the_end_of_a_restored_command_is_noticed(sandbox: Sandbox) -> None:
    exec_id = start_teller(sandbox)
    [fork] = sandbox.fork()
    with fork:
        [command] = fork.commands.list()
        assert (command.exec_id, command.running, command.inherited) == (exec_id, True, True)
        fork.commands.send_stdin(exec_id, b"last\n", eof=True)
        for _ in eventually("its end is not seen"):
            [command] = fork.commands.list()
            if not command.running:
                break
        assert (command.exit_code, command.signal) == (0, None)
        assert parsed(fork.commands.output(exec_id).decode())[0] == ["last"]
        # No zombie, and nothing of it is taken for a running command.
        for _ in eventually("it is still counted"):
            if fork.metrics().execs_running == 0:
                break
        assert "python" not in fork.commands.run("ps -eo stat,comm").stdout
    assert original_tell(sandbox, "still there")[2]


def test_a_fork_of_a_fork(sandbox: Sandbox) -> None:
    exec_id = start_teller(sandbox)
    [child] = sandbox.fork()
    with child:
        assert Teller(child, exec_id).tell("child")[0] == ["child"]
        [grandchild] = child.fork()
        with grandchild:
            assert Teller(grandchild, exec_id).tell("grand")[:2] == (["child", "grand"],) * 2
            generations = {each.info.generation for each in (sandbox, child, grandchild)}
            assert len(generations) == 3
            for each in (sandbox, child, grandchild):
                seen = each.commands.run("cat /run/venus/generation").stdout
                assert seen == f"{each.info.generation}\n"
            refused = grandchild.commands.run(
                "echo x > /run/venus/generation; rm -f /run/venus/generation;"
                "mv /run/venus /run/elsewhere; umount /run/venus",
                check=False,
            )
            assert refused.exit_code != 0
            assert grandchild.files.read("/run/venus/generation") == (
                f"{grandchild.info.generation}\n"
            )
        assert child.info.template is not None and sandbox.info.template is None


def test_a_sandbox_without_processes(sandbox: Sandbox) -> None:
    sandbox.files.write("/root/on-disk", "disk")
    sandbox.files.write("/tmp/in-memory", "memory")
    sandbox.commands.run("rm /etc/hostname; ln -s /nowhere /root/link; chmod 600 /root/on-disk")
    for fork in sandbox.fork(2):
        with fork:
            assert fork.files.read("/root/on-disk") == "disk"
            assert fork.files.read("/tmp/in-memory") == "memory"
            assert fork.commands.run("readlink /root/link").stdout == "/nowhere\n"
            assert fork.commands.run("stat -c %a /root/on-disk").stdout == "600\n"
            assert fork.commands.run("hostname").stdout == f"{fork.sandbox_id}\n"
            fork.commands.run("echo mine > /root/on-disk; rm /tmp/in-memory")
    assert sandbox.files.read("/root/on-disk") == "disk"


def test_a_template_outlives_its_sandbox(daemon: DaemonProcess) -> None:
    with Sandbox.create(
        socket=daemon.socket, envs={"A": "1"}, cwd="/srv", memory_bytes=300 << 20
    ) as sandbox:
        exec_id = start_teller(sandbox)
        template = sandbox.snapshot({"n": "1"})
    listed = Template.list({"n": "1"}, socket=daemon.socket)
    assert [each.id for each in listed] == [template.template_id]
    assert Template.list({"n": "2"}, socket=daemon.socket) == []
    assert template.info.processes == 1 and template.info.own_bytes > 4 << 20
    with Sandbox.create(template=template, envs={"B": "2"}, socket=daemon.socket) as fork:
        assert Teller(fork, exec_id).tell("x") == (["x"], ["x"], True)
        assert fork.commands.run("echo $A $B $PWD").stdout == "1 2 /srv\n"
        assert fork.info.limits.memory_bytes == 300 << 20
        assert fork.info.template == template.template_id
        assert template.remove() and not template.remove()
        # The fork holds what it stands on.
        assert Teller(fork, exec_id).sandbox.commands.run("cat /root/told").stdout == "x\n"
    with pytest.raises(NotFound, match="no such template"):
        Sandbox.create(template=template, socket=daemon.socket)
    with pytest.raises(NotFound, match="no such template"):
        Template.get(template.template_id, socket=daemon.socket)


def test_limits_of_a_fork_can_be_others(sandbox: Sandbox) -> None:
    [fork] = sandbox.fork(1, memory_bytes=200 << 20, pids=33, cpu_cores=0.5)
    with fork:
        limits = fork.get_info().limits
        assert (limits.memory_bytes, limits.pids, limits.cpu_cores) == (200 << 20, 33, 0.5)


PIDFD = """
import os, time
pidfd = os.pidfd_open(os.getpid())
print(1, flush=True)
time.sleep(1000)
"""


def test_what_cannot_be_captured_is_named(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run(["python3", "-c", PIDFD], True)
    assert next(iter(handle)).data == b"1\n"
    with pytest.raises(SnapshotRefused) as refused:
        sandbox.snapshot()
    assert "python3 (pid" in refused.value.cause and "pidfd" in refused.value.cause
    with pytest.raises(SnapshotRefused):
        sandbox.fork(2)
    # It goes on untouched, and can be captured once the reason is gone.
    assert [each.running for each in sandbox.commands.list()] == [True]
    handle.kill()
    handle.wait(check=False)
    sandbox.fork()[0].kill()


def test_a_count_out_of_bounds(sandbox: Sandbox) -> None:
    for count in (0, -1, 100_000):
        with pytest.raises(InvalidRequest):
            sandbox.fork(count)


def test_all_or_nothing(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    """So little memory that no fork can be restored: every one of a row is removed."""
    sandbox.commands.run("head -c 64M /dev/urandom > /tmp/much")
    before = {each.id for each in Sandbox.list(socket=daemon.socket)}
    with pytest.raises(VenusError):
        sandbox.fork(4, memory_bytes=20 << 20)
    for _ in eventually("forks are left"):
        if {each.id for each in Sandbox.list(socket=daemon.socket)} == before:
            break
    assert sandbox.commands.run("stat -c %s /tmp/much").stdout == f"{64 << 20}\n"


def test_destroy_during_a_snapshot(daemon: DaemonProcess) -> None:
    for delay_s in (0.0, 0.02, 0.1, 0.3):
        sandbox = Sandbox.create(socket=daemon.socket)
        sandbox.commands.run("head -c 200M /dev/urandom > /tmp/much; sleep 1000 > /dev/null 2>&1 &")
        outcome: list[object] = []

        def snapshot(origin: Sandbox, told: list[object]) -> None:
            try:
                told.append(origin.snapshot())
            except VenusError as error:
                told.append(error)

        other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
        thread = threading.Thread(target=snapshot, args=(other, outcome))
        thread.start()
        time.sleep(delay_s)
        assert sandbox.kill()
        thread.join(30)
        [end] = outcome
        assert isinstance(end, Template | SandboxGone), end
        if isinstance(end, Template):
            end.remove()


def test_snapshots_at_once_take_turns(sandbox: Sandbox) -> None:
    exec_id = start_teller(sandbox)
    templates: list[Template] = []

    def snapshot() -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=sandbox._transport.socket)
        templates.append(other.snapshot())

    threads = [threading.Thread(target=snapshot) for _ in range(4)]
    for thread in threads:
        thread.start()
    # Commands wait, and then run.
    assert sandbox.commands.run("echo served").stdout == "served\n"
    for thread in threads:
        thread.join(60)
    assert len(templates) == 4
    for template in templates:
        [fork] = template.fork()
        with fork:
            assert Teller(fork, exec_id).tell("x")[0] == ["x"]
        template.remove()


def test_a_fork_holds_only_what_it_writes(daemon: DaemonProcess) -> None:
    script = (
        "import os, sys\nheld = os.urandom(64 << 20)\nprint(1, flush=True)\n"
        "for line in sys.stdin: more = os.urandom(16 << 20); print(2, flush=True)"
    )
    with Sandbox.create(socket=daemon.socket) as sandbox:
        handle = sandbox.commands.run(["python3", "-c", script], True, stdin=True)
        assert next(iter(handle)).data == b"1\n"
        assert sandbox.metrics().private_bytes > 64 << 20
        [fork] = sandbox.fork()
        with fork:
            before = fork.metrics().private_bytes
            assert 0 < before < 8 << 20
            fork.commands.send_stdin(handle.exec_id, b"\n")
            for _ in eventually("it does not write"):
                if fork.commands.output(handle.exec_id):
                    break
            after = fork.metrics().private_bytes
            assert 16 << 20 <= after - before < 20 << 20
            fork.commands.run("head -c 8M /dev/urandom > /tmp/x; cat /usr/bin/* > /dev/null")
            assert 8 << 20 <= fork.metrics().private_bytes - after < 12 << 20
            # What it shares is counted once, in the pool, and as long as it maps it or the original
            # keeps it for its next capture.
            info = Daemon(daemon.socket).info()
            assert (info.templates, 64 << 20 <= info.pool_bytes < 80 << 20) == (0, True)
    assert Daemon(daemon.socket).info().pool_bytes < 64 << 20
