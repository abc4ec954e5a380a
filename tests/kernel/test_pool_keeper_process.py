"""pool-keeper as a process: found, started once, outliving the daemon, ending by itself."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.errors import InternalError, OperationTimeout
from sandboxd.keeper import Found, Held, KeeperGone, PoolKeeper
from sandboxd.keeper import connection as connection_module
from sandboxd.keeper import start as start_module
from sandboxd.keeper.wire import Kind
from tests.support.keeper import (
    WAIT_S,
    Process,
    content,
    end_keeper,
    own_descriptors,
    sealed_files,
)

pytestmark = pytest.mark.usefixtures("needs_root")

# A daemon that holds `whole`, then is killed in the middle of putting `half`.
DYING_DAEMON = """
import os, signal, sys
from pathlib import Path
from sandboxd.keeper import PoolKeeper
from sandboxd.keeper.connection import Connection
from sandboxd.keeper.wire import Kind
from tests.support.keeper import sealed_file
directory = Path(sys.argv[1])
keeper = PoolKeeper(directory)
keeper.open()
files = [sealed_file(f"old{n}".encode()) for n in range(100)]
keeper.hold("whole", b"header", files)
connection = Connection(directory)
connection.ask(Kind.PUT, "half", 101)
for part in range(int(sys.argv[2])):
    connection.ask(Kind.PART, descriptors=[sealed_file(b"new") for _ in range(50)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("k") / "keeper"
    yield path
    end_keeper(path)


def pid_of(keeper: PoolKeeper) -> int:
    return keeper.state().pid


def test_the_directory_has_one_keeper_whoever_starts_it(directory: Path) -> None:
    """Daemons that start at the same time, in many rounds, also while the last keeper is ending."""
    for _ in range(10):
        keepers = [PoolKeeper(directory) for _ in range(6)]
        barrier = threading.Barrier(len(keepers))
        found: list[Found] = []

        def start(keeper: PoolKeeper, barrier: threading.Barrier, found: list[Found]) -> None:
            barrier.wait()
            found.append(keeper.open())

        threads = [
            threading.Thread(target=start, args=(keeper, barrier, found)) for keeper in keepers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(each.name for each in found) == ["RUNNING"] * 5 + ["STARTED"]
        assert len({pid_of(each) for each in keepers}) == 1
        keepers[0].end()
        for keeper in keepers[1:]:
            with pytest.raises(KeeperGone):
                keeper.list()


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_kill_of_the_daemon_in_the_middle_of_a_put(directory: Path, parts: int) -> None:
    before = own_descriptors()
    done = subprocess.run(
        [sys.executable, "-c", DYING_DAEMON, directory, str(parts)], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    keeper = PoolKeeper(directory)
    assert keeper.open() is Found.RUNNING
    assert keeper.list() == (Held("whole", 100),)
    with keeper.take("whole") as taken:
        assert taken.header == b"header"
        assert [content(each) for each in taken.descriptors] == [
            f"old{number}".encode() for number in range(100)
        ]
    assert keeper.state().files == 101  # nothing of the half one
    keeper.end()
    assert own_descriptors() == before


def test_kill_of_the_keeper(directory: Path) -> None:
    keeper = PoolKeeper(directory)
    keeper.open()
    with sealed_files(3) as files:
        keeper.hold("x", b"", files)
        process = Process(pid_of(keeper))
        os.kill(process.pid, signal.SIGKILL)
        assert process.ends()
        process.close()
        with pytest.raises(KeeperGone, match="take template x"):
            keeper.take("x")
        with pytest.raises(KeeperGone):  # and never a new one that holds nothing, unasked
            keeper.list()
        assert (directory / "socket").exists()
        assert keeper.open() is Found.STARTED
        assert keeper.list() == ()
        keeper.hold("x", b"", files)
    keeper.end()
    assert not directory.exists()


def test_it_stands_alone(directory: Path) -> None:
    """Nothing that ends the daemon, its session or its unit ends the keeper."""
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    keeper = PoolKeeper(directory)
    keeper.open()
    os.close(leak)
    pid = pid_of(keeper)
    assert os.getsid(pid) not in (os.getsid(0), os.getpid())
    assert os.getpgid(pid) != os.getpgid(0)
    parent = Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0]
    assert int(parent) != os.getpid()
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    unit = [each for each in groups if each.startswith("0::") or ":name=systemd:" in each]
    assert all(each.endswith(":/") for each in unit), unit
    places = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    assert {each for each in places if not each.startswith("socket:")} == {
        "/dev/null",
        str(directory),
    }
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGUSR1):
        os.kill(pid, number)
    assert pid_of(keeper) == pid
    keeper.end()


def test_it_is_small(directory: Path) -> None:
    keeper = PoolKeeper(directory)
    keeper.open()
    with sealed_files(500) as files:
        for number in range(100):
            keeper.hold(f"t{number}", b"h", files[number * 5 : number * 5 + 5])
    status = Path(f"/proc/{pid_of(keeper)}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 400
    keeper.end()


def test_it_ends_when_nobody_needs_it(directory: Path) -> None:
    """One that holds nothing ends; one that holds something, started before, does not."""
    holding = PoolKeeper(directory, idle_s=0.05)
    holding.open()
    with sealed_files(1) as files:
        holding.hold("x", b"", files)
    empty = PoolKeeper(directory.with_name("empty"), idle_s=0.05)
    empty.open()
    with sealed_files(1) as files:
        empty.hold("x", b"", files)
    empty.release("x")
    process = Process(pid_of(empty))
    holding.close()
    empty.close()
    assert process.ends()
    assert not directory.with_name("empty").exists()
    assert holding.open() is Found.RUNNING
    assert holding.list() == (Held("x", 1),)
    process.close()


def test_it_ends_when_nobody_can_reach_it(directory: Path) -> None:
    keeper = PoolKeeper(directory)
    keeper.open()
    with sealed_files(1) as files:
        keeper.hold("x", b"", files)
    process = Process(pid_of(keeper))
    (directory / "socket").unlink()
    keeper.close()
    assert process.ends()
    assert not directory.exists()
    process.close()


def test_a_keeper_of_another_version_is_replaced(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(directory / "socket"))
    listener.listen()
    asked = []

    def be_another_version() -> None:
        peer, _ = listener.accept()
        while not asked or asked[-1] != Kind.END:
            asked.append(struct.unpack_from("=II", peer.recv(4096))[1])
            peer.send(struct.pack("=IIiIQ", 7, asked[-1], 0, 0, 0))
        (directory / "socket").unlink()
        os.close(lock_fd)
        listener.close()
        peer.close()

    thread = threading.Thread(target=be_another_version)
    thread.start()
    keeper = PoolKeeper(directory)
    assert keeper.open() is Found.REPLACED
    thread.join(WAIT_S)
    assert asked == [Kind.HELLO, Kind.END]
    assert keeper.list() == ()
    keeper.end()


def test_who_does_not_answer_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection_module, start_module):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.1)
    keeper = PoolKeeper(directory)
    directory.mkdir(mode=0o700)
    lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    with pytest.raises(OperationTimeout, match="does not answer"):
        keeper.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen()
        with pytest.raises(OperationTimeout, match="no answer"):
            keeper.open()
    os.close(lock_fd)


def test_a_keeper_that_cannot_start_is_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_module.connect, "__kwdefaults__", {"binary": Path("/bin/false")})
    keeper = PoolKeeper(directory)
    with pytest.raises(InternalError, match=r"start pool keeper /bin/false: .*it ended with 1"):
        keeper.open()
    monkeypatch.setattr(start_module.connect, "__kwdefaults__", {"binary": Path("/no/such")})
    with pytest.raises(InternalError, match="No such file"):
        keeper.open()
