"""pool-keeper holds what it is given, exactly, and nothing that it should not."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from sandboxd.keeper import Held, PoolKeeper
from sandboxd.keeper.wire import BATCH, VERSION, KeeperState, Kind, decode_answer, encode_request
from tests.support.keeper import (
    WAIT_S,
    content,
    end_keeper,
    own_descriptors,
    sealed_file,
    sealed_files,
)

pytestmark = pytest.mark.usefixtures("needs_root")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Short: the paths of sockets are.
    path = tmp_path_factory.mktemp("k") / "keeper"
    yield path
    end_keeper(path)


@pytest.fixture
def keeper(directory: Path) -> Iterator[PoolKeeper]:
    keeper = PoolKeeper(directory)
    keeper.open()
    yield keeper
    keeper.close()


class Peer:
    """A client that says what it likes."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(directory / "socket"))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, packet: bytes, fds: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([packet], rights)

    def answer(self, packet: bytes, fds: list[int] | None = None) -> int:
        """What the keeper answers."""
        self.send(packet, fds)
        return decode_answer(self.socket.recv(4096)).errno

    def put(self, name: str, number: int) -> int:
        return self.answer(encode_request(Kind.PUT, name, number))


def footprint(keeper: PoolKeeper) -> tuple[KeeperState, int]:
    """What it says that it holds, and what it does hold."""
    state = keeper.state()
    return state, len(os.listdir(f"/proc/{state.pid}/fd"))


def test_what_is_held_can_be_taken(keeper: PoolKeeper) -> None:
    before = own_descriptors()
    with sealed_files(200) as files:
        keeper.hold("one", b"header of one", files)
        keeper.hold("two", b"", files[:0])
    assert set(keeper.list()) == {Held("one", 200), Held("two", 0)}
    for _ in range(2):
        with keeper.take("one") as taken:
            assert taken.header == b"header of one"
            assert [content(each) for each in taken.descriptors] == [
                str(number).encode() for number in range(200)
            ]
            assert not any(os.get_inheritable(each) for each in taken.descriptors)
    with keeper.take("two") as taken:
        assert (taken.header, taken.descriptors) == (b"", [])
    keeper.release("one")
    keeper.release("one")
    with pytest.raises(NotFound, match="take template one"):
        keeper.take("one")
    assert keeper.list() == (Held("two", 0),)
    assert own_descriptors() == before


def test_large_entries_and_many_entries(keeper: PoolKeeper) -> None:
    with sealed_files(3000) as files:
        keeper.hold("large", b"x" * (1 << 20), files)
        for number in range(100):
            keeper.hold(f"small-{number}", b"", files[number : number + 2])
    assert {each.name for each in keeper.list()} == {
        "large",
        *(f"small-{number}" for number in range(100)),
    }
    with keeper.take("large") as taken:
        assert [content(each) for each in taken.descriptors] == [
            str(number).encode() for number in range(3000)
        ]
    for number in range(0, 100, 2):
        keeper.release(f"small-{number}")
    assert len(keeper.list()) == 51
    with keeper.take("small-99") as taken:
        assert [content(each) for each in taken.descriptors] == [b"99", b"100"]


def test_shared_files_are_held_once(keeper: PoolKeeper) -> None:
    empty, open_files = footprint(keeper)
    with sealed_files(10) as files:
        keeper.hold("parent", b"p", files)
        keeper.hold("child", b"c", [*files, files[0]])
    assert keeper.state().references == 11 + 12
    assert keeper.state().files == 12  # ten, and two headers
    assert footprint(keeper)[1] == open_files + 12
    keeper.release("parent")
    assert keeper.state().files == 11
    with keeper.take("child") as taken:
        assert content(taken.descriptors[9]) == b"9"
        assert content(taken.descriptors[10]) == b"0"
    keeper.release("child")
    assert footprint(keeper) == (empty, open_files)


def test_entries_never_change(keeper: PoolKeeper, directory: Path) -> None:
    with sealed_files(2) as files, Peer(directory) as peer:
        assert peer.put("x", 2) == 0
        assert peer.answer(encode_request(Kind.PART), files) == 0
        keeper.hold("x", b"first", files)
        assert peer.answer(encode_request(Kind.COMMIT)) == errno.EEXIST
        assert peer.put("x", 2) == errno.EEXIST
        with pytest.raises(Conflict, match="hold template x"):
            keeper.hold("x", b"second", files)
    with keeper.take("x") as taken:
        assert taken.header == b"first"


def test_a_failed_hold_leaves_nothing(keeper: PoolKeeper) -> None:
    before, mine = footprint(keeper), own_descriptors()
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    with sealed_files(BATCH * 2) as files:
        for wrong in (unsealed, 0, 1 << 20):
            with pytest.raises(InvalidRequest, match=r"hold template x: .*(EINVAL|EBADF)"):
                keeper.hold("x", b"", [*files, wrong, *files])
            assert footprint(keeper) == before
        with pytest.raises(InvalidRequest):
            keeper.hold("a/b", b"", files)
        with pytest.raises(LimitExceeded):
            keeper.hold("x", b"", files * 70)
        with pytest.raises(LimitExceeded):
            keeper.hold("x", b"x" * ((1 << 20) + 1), files)
    os.close(unsealed)
    assert footprint(keeper) == before
    assert own_descriptors() == mine


def test_nothing_of_an_unfinished_put_is_seen_or_stays(keeper: PoolKeeper, directory: Path) -> None:
    before = footprint(keeper)
    with sealed_files(BATCH) as files, Peer(directory) as peer:
        assert peer.put("x", BATCH + 1) == 0
        assert peer.answer(encode_request(Kind.PART), files) == 0
        assert keeper.list() == ()
        assert peer.answer(encode_request(Kind.COMMIT)) != 0
        assert footprint(keeper)[0] == before[0]
        assert peer.put("x", BATCH) == 0
        assert peer.answer(encode_request(Kind.PART), files) == 0
        assert peer.put("y", 5) == 0  # another PUT forgets the one before
        assert keeper.state().files == 0
        assert peer.answer(encode_request(Kind.PART), files[:4]) == 0
    # The end of that connection comes before any later request in the keeper's queue of events,
    # but not before one that is there already.
    while footprint(keeper) != before:
        pass


def raw(kind: int, number: int = 0, name_size: int = 1, name: bytes = b"x", version: int = VERSION):
    return struct.pack("=IIII64s", version, kind, number, name_size, name)


HOSTILE = {
    "truncated": (raw(Kind.LIST)[:79], 0),
    "one byte": (b"x", 0),
    "oversize": (raw(Kind.LIST) + b"x", 0),
    "huge": (b"x" * 100_000, 0),
    "type 0": (raw(0), 0),
    "type 9": (raw(9), 0),
    "type -1": (raw(0xFFFFFFFF), 0),
    "other version": (raw(Kind.LIST, version=2), 0),
    "no name": (raw(Kind.PUT, 3, 0, b""), 0),
    "long name": (raw(Kind.PUT, 3, 65, b"x" * 64), 0),
    "huge name": (raw(Kind.PUT, 3, 0xFFFFFFFF, b"x" * 64), 0),
    "path as name": (raw(Kind.PUT, 3, 4, b"../x"), 0),
    "zero in name": (raw(Kind.PUT, 3, 3, b"a\0b"), 0),
    "no files": (raw(Kind.PUT, 0), 0),
    "too many files": (raw(Kind.PUT, 8449), 0),
    "endless files": (raw(Kind.PUT, 0xFFFFFFFF), 0),
    "part without put": (raw(Kind.PART), 3),
    "commit without put": (raw(Kind.COMMIT), 0),
    "commit with files": (raw(Kind.COMMIT), 1),
    "put with files": (raw(Kind.PUT, 3), 3),
    "list with files": (raw(Kind.LIST), BATCH),
    "hello with files": (raw(Kind.HELLO), 2),
    "truncated with files": (raw(Kind.PART)[:20], BATCH),
    "get of nothing": (raw(Kind.GET), 0),
    "get of a long name": (raw(Kind.GET, 0, 0xFFFFFFFF), 0),
    "get beyond the end": (raw(Kind.GET, 3, 4, b"kept"), 0),
    "get far beyond the end": (raw(Kind.GET, 0xFFFFFFFF, 4, b"kept"), 0),
    "removal of nothing": (raw(Kind.REMOVE), 0),
    "removal of a long name": (raw(Kind.REMOVE, 0, 65, b"x" * 64), 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_packets_are_refused(name: str, keeper: PoolKeeper, directory: Path) -> None:
    packet, fd_count = HOSTILE[name]
    with sealed_files(max(fd_count, 2)) as files:
        keeper.hold("kept", b"", files[:2])
        before = footprint(keeper)
        with Peer(directory) as peer:
            # Also in the middle of a PUT, which such a packet ends.
            for begun in (False, True):
                if begun:
                    assert peer.put("begun", 3) == 0
                    assert peer.answer(encode_request(Kind.PART), files[:1]) == 0
                if name in ("part without put", "commit without put") and begun:
                    continue
                assert peer.answer(packet, files[:fd_count]) != 0
                assert footprint(keeper)[0].entries == before[0].entries
        with keeper.take("kept") as taken:
            assert len(taken.descriptors) == 2
    assert keeper.list() == (Held("kept", 2),)


def test_too_many_descriptors_in_one_packet(keeper: PoolKeeper, directory: Path) -> None:
    before = footprint(keeper)
    with sealed_files(BATCH + 40) as files, Peer(directory) as peer:
        assert peer.put("x", len(files)) == 0
        assert peer.answer(encode_request(Kind.PART), files) != 0
        assert peer.answer(encode_request(Kind.COMMIT)) != 0
        # Its own connection is the only thing that it holds more.
        assert footprint(keeper) == (before[0], before[1] + 1)


def test_any_bytes_leave_it_as_it_was(keeper: PoolKeeper, directory: Path) -> None:
    chance = random.Random(1)
    with sealed_files(8) as files:
        keeper.hold("kept", b"", files)
        before = footprint(keeper)
        for _ in range(30):
            with Peer(directory) as peer, contextlib.suppress(ConnectionError):
                for _ in range(100):
                    packet = bytearray(
                        raw(
                            chance.randrange(10),
                            chance.choice((0, 1, 2, 1 << 31)),
                            chance.choice((0, 1, 4, 64, 70)),
                            chance.choice((b"x", b"y", b"none", b"\xff" * 64)),
                        )
                    )
                    if chance.random() < 0.3:
                        packet[chance.randrange(len(packet))] = chance.randrange(256)
                    if chance.random() < 0.1:
                        packet = packet[: chance.randrange(1, len(packet))]
                    if struct.unpack_from("=I", packet.ljust(8), 4)[0] == Kind.END:
                        continue
                    peer.answer(bytes(packet), files[: chance.choice((0, 0, 1, 2))])
        for held in keeper.list():
            if held.name != "kept":
                keeper.release(held.name)
    while footprint(keeper) != before:
        pass
    assert keeper.list() == (Held("kept", 8),)


@contextlib.contextmanager
def open_to_all(socket_path: Path) -> Iterator[None]:
    """The way to the socket, which only root can go otherwise."""
    way = [path for path in socket_path.parents if path.stat().st_mode & 0o001 == 0]
    modes = [path.stat().st_mode for path in way]
    try:
        for path in (*way, socket_path):
            path.chmod(0o777)
        yield
    finally:
        for path, mode in zip(way, modes, strict=True):
            path.chmod(mode)


def test_others_than_root_are_not_heard(keeper: PoolKeeper, directory: Path) -> None:
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(int(sys.argv[3]))\n"
        "s.connect(sys.argv[1])\n"
        "try:\n    s.send(bytes.fromhex(sys.argv[2])); print(len(s.recv(4096)))\n"
        "except ConnectionError: print(0)\n"
    )
    answers = []
    with open_to_all(directory / "socket"):
        for kind, uid in ((Kind.END, 65534), (Kind.HELLO, 65534), (Kind.HELLO, 0)):
            packet = encode_request(kind).hex()
            command = [sys.executable, "-c", script, directory / "socket", packet, str(uid)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=WAIT_S
            )
            answers.append(int(done.stdout))
    assert answers == [0, 0, 48]
    assert keeper.state().entries == 0


def test_connections_are_bounded(keeper: PoolKeeper, directory: Path) -> None:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(directory)) for _ in range(7)]
        assert [each.answer(encode_request(Kind.LIST)) for each in peers] == [0] * 7
        with Peer(directory) as refused:
            assert refused.socket.recv(4096) == b""
        assert keeper.list() == ()
    with Peer(directory) as again:
        # Taken only when the keeper has seen one of the others go.
        with contextlib.suppress(ConnectionError):
            again.send(encode_request(Kind.LIST))
    assert keeper.list() == ()


def test_who_does_not_read_is_dropped(keeper: PoolKeeper, directory: Path) -> None:
    with Peer(directory) as peer:
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                peer.send(encode_request(Kind.HELLO))
    assert keeper.list() == ()


def test_its_descriptors_are_bounded(keeper: PoolKeeper) -> None:
    """By its limit on open files, of which it keeps some for itself: it answers to the end."""
    pid = keeper.state().pid
    keeper.close()
    limit = 300
    script = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "from pathlib import Path\n"
        "from sandboxd.keeper import PoolKeeper\n"
        "PoolKeeper(Path(sys.argv[1])).open()\n"
    )
    keeper.open()
    keeper.end()
    keeper_directory = str(keeper._directory)
    subprocess.run([sys.executable, "-c", script, keeper_directory], check=True, timeout=WAIT_S)
    keeper.open()
    state = keeper.state()
    assert state.pid != pid and 100 < state.max_files < limit
    with sealed_files(state.max_files + 1) as files:
        for at in range(0, state.max_files - 20, 10):
            with contextlib.suppress(LimitExceeded):
                keeper.hold(f"t{at}", b"", files[at : at + 10])
        held = keeper.state().files
        assert held <= state.max_files
        with pytest.raises(LimitExceeded, match="EMFILE"):
            keeper.hold("more", b"", files)
    assert keeper.state().files == held
    with keeper.take("t0") as taken:
        assert len(taken.descriptors) == 10


def test_rounds_leave_no_descriptor(keeper: PoolKeeper) -> None:
    before, mine = footprint(keeper), own_descriptors()
    for number in range(50):
        extra = sealed_file(b"extra")
        with sealed_files(BATCH) as files:
            keeper.hold(f"t{number}", b"h", [*files, extra])
        os.close(extra)
        keeper.take(f"t{number}").close()
        keeper.release(f"t{number}")
    assert footprint(keeper) == before
    assert own_descriptors() == mine
