"""Inputs for the fuzz programs to begin with, made by the project's encoders and by the kernel."""

from __future__ import annotations

import io
import os
import select
import socket
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandboxd import init_protocol as protocol
from sandboxd.init_protocol.files import read_request, write_request
from sandboxd.isolation.plan import IsolationSpec, exec_policy, setup_ops
from sandboxd.keeper.wire import Kind, encode_request

_SPEC = IsolationSpec("sb-1", "worker", 1 << 30, generation="7")
_FDS = protocol.ExecFds(stdin=3, stdout=4, stderr=5, cgroup_procs=(6, 7), cgroup_kill=8)
# In the order of fuzz_proc.cc.
_PROC_FILES = (
    "smaps",
    "status",
    "stat",
    "limits",
    "net/tcp",
    "uid_map",
    *("fdinfo of a lock", "fdinfo of an epoll", "fdinfo of a timer"),
    "timers",
    "sysvipc",
    "mountinfo",
    "cgroup",
)
_TIMER_FDINFO = """pos:\t0
flags:\t02
mnt_id:\t16
ino:\t1057
clockid: 1
ticks: 2
settime flags: 01
it_value: (5, 1)
it_interval: (1, 0)
"""
_POSIX_TIMERS = """ID: 0
signal: 14/00007ffe1a2b3c4d
notify: signal/pid.2634
ClockID: 0
ID: 1
signal: 35/0000000000000001
notify: thread/tid.2635
ClockID: 1
"""
_SYSVIPC = """       key      shmid perms            size  cpid  lpid nattch   uid   gid  cuid  cgid
         0          3  1600            4096  7001  7002      2  1000  1000  1000  1000
"""
_LOCK = """lock:	1: FLOCK  ADVISORY  WRITE 123 fe:00:456 0 EOF
lock:	2: POSIX  ADVISORY  READ 1 fe:00:4 5 9
"""


def write_seeds(corpus: Path, build: Path) -> None:
    """One directory of `corpus` for each fuzz program in `build`."""
    for program in programs(build):
        (corpus / program.name).mkdir(parents=True, exist_ok=True)
    for name, seeds in (
        ("fuzz_init_control", _control_conversations()),
        ("fuzz_init_packet", _packets()),
        ("fuzz_init_plan", iter([protocol.encode_plan(setup_ops(_SPEC), exec_policy(_SPEC))])),
        ("fuzz_init_restore", _restores()),
        ("fuzz_init_stat", iter([Path("/proc/self/stat").read_bytes(), b"7 (a) b) S 1 7 7 0"])),
        ("fuzz_init_tar", _archives()),
        ("fuzz_init_untar", (bytes([1]) + each for each in _trees())),
        ("fuzz_init_upload", _uploads()),
        ("fuzz_init_users", _users()),
        ("fuzz_keeper", _conversations()),
        ("fuzz_proc", _proc_files()),
        ("fuzz_socket_table", iter([_socket_table()])),
        ("fuzz_tail", _resume_code()),
    ):
        for number, seed in enumerate(seeds):
            (corpus / name / f"seed-{number}").write_bytes(seed)
    subprocess.run([build / "tests/fuzz/fuzz_seeds", corpus], check=True)


def programs(build: Path) -> list[Path]:
    """The fuzz programs that were built."""
    found = sorted((build / "tests" / "fuzz").glob("fuzz_*"))
    return [each for each in found if each.is_file() and each.name != "fuzz_seeds"]


def _control_conversations() -> Iterator[bytes]:
    send, connect, drain, turn = 0, 4, 5, 6

    def step(what: int, packet: bytes = b"", fds: int = 0) -> bytes:
        return struct.pack("<BBH", what, fds, len(packet)) + packet

    def start(exec_id: int, **options: Any) -> bytes:
        return protocol.encode_exec(1, protocol.ExecRequest(exec_id, ("true",), **options), _FDS)

    kept = protocol.ExecFds(keep_stdout=3, keep_stderr=4)
    terminal = protocol.ExecRequest(8, ("sh",), terminal=(24, 80))
    yield b"".join(
        (
            step(send, protocol.encode_hello(1)),
            step(send, start(9, timeout_ms=1), len(_FDS.in_order())),
            step(send, protocol.encode_exec(2, terminal, protocol.ExecFds())),
            step(turn),
            step(drain),
            step(send, protocol.encode_list(2)),
            step(connect),
            step(send, protocol.encode_list(3)),
            step(send, protocol.encode_kill(3, 9, 15, whole_tree=True)),
            step(send, protocol.encode_stdin_closed(4, 9)),
            step(turn),
            step(send, protocol.encode_release(5, 9)),
        )
    )
    restored = protocol.ExecRequest(7, ("",), kind=protocol.ExecKind.RESTORED, number0=5)
    yield b"".join(
        (
            step(send, protocol.encode_exec(1, restored, kept), 2),
            step(send, protocol.encode_keep_terminal(2, 7), 0x61),
            step(send, protocol.encode_kill(3, 7, 9, whole_tree=False)),
            step(turn),
            step(send, protocol.encode_shutdown(6)),
        )
    )


def _packets() -> Iterator[bytes]:
    request = protocol.ExecRequest(
        9,
        ("sh", "-c", "exit 3"),
        user="1000:1000",
        cwd="/root",
        env={"A": "1", "PATH": "/bin"},
        timeout_ms=7000,
        rlimits=(protocol.Rlimit(7, 64, 64),),
    )
    yield bytes([len(_FDS.in_order())]) + protocol.encode_exec(1, request, _FDS)
    streams = protocol.ExecFds(stdin=3, stdout=4, stderr=5)
    for file in (read_request(3, "/etc/hosts"), write_request(4, "/x", mode=0o644)):
        yield b"\x03" + protocol.encode_exec(2, file, streams)
    for packet in (
        protocol.encode_hello(1),
        protocol.encode_list(2),
        protocol.encode_kill(3, 9, 15, whole_tree=True),
        protocol.encode_stdin_closed(4, 9),
        protocol.encode_release(5, 9),
        protocol.encode_shutdown(6),
        protocol.encode_socket(7, socket.AF_INET),
    ):
        yield b"\x00" + packet


def _restores() -> Iterator[bytes]:
    # struct vr_start, then the head of a plan with a filter of one instruction and one extent.
    plan_bytes = 4096
    start = struct.pack("<IIQQQII", 0x52534E56, 4, 1 << 44, plan_bytes, 0x140, 70, 3)
    head = bytearray(plan_bytes)
    at = plan_bytes - 64
    for offset, value in ((192, at), (200, at + 8)):
        struct.pack_into("<Q", head, offset, value)
    struct.pack_into("<II", head, 208, 1, 1)
    yield start + bytes(head)
    yield struct.pack("<IIQQ", 0x52534E56, 1, 5, 77) + struct.pack("<Q", 78)


def _archives() -> Iterator[bytes]:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=form) as archive:
            for name in ("a", "d/" + 9 * "long-name-"):
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid = 3, 1 << 30, 1000
                archive.addfile(member, io.BytesIO(b"abc"))
        yield written.getvalue()
    yield b"22 mtime=-1.000000001\n12 size=777\n13 path=a=b\n\n"


def _trees() -> Iterator[bytes]:
    """Archives with members of each kind, and with such as would lead out of the directory."""
    hostile = (
        (tarfile.SYMTYPE, "way", "../outside"),
        (tarfile.REGTYPE, "way/kept", ""),
        (tarfile.LNKTYPE, "own", "way/kept"),
        (tarfile.REGTYPE, "../outside/kept", ""),
    )
    ordinary = (
        (tarfile.DIRTYPE, "d", ""),
        (tarfile.REGTYPE, "d/f", ""),
        (tarfile.LNKTYPE, "d/again", "d/f"),
        (tarfile.SYMTYPE, "d/to", "f"),
        (tarfile.FIFOTYPE, "d/p", ""),
        (tarfile.CHRTYPE, "d/null", ""),
        (tarfile.REGTYPE, "d/" + 12 * "long-name-", ""),
        (tarfile.SYMTYPE, "d/far", 12 * "long-name-"),
    )
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        yield _tree(form, ordinary)
        for member in hostile:
            yield _tree(form, (hostile[0], member))
    sparse = "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.realsize", "GNU.sparse.name"
    map_and_data = b"1\n512\n3\n".ljust(512, b"\0") + b"abc"
    headers = dict(zip(sparse, ("1", "0", "1024", "sparse"), strict=True))
    yield _tree(tarfile.PAX_FORMAT, ((tarfile.REGTYPE, "s", ""),), map_and_data, headers)
    attributes = {"SCHILY.xattr.user.a": "1", "mtime": "7.5", "size": "3", "path": "named"}
    yield _tree(tarfile.PAX_FORMAT, ((tarfile.REGTYPE, "x", ""),), b"abc", attributes)


def _tree(
    form: int,
    members: tuple[tuple[bytes, str, str], ...],
    content: bytes = b"abc",
    headers: dict[str, str] | None = None,
) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as archive:
        for kind, name, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.pax_headers = kind, target, dict(headers or {})
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue().rstrip(b"\0").ljust(1024, b"\0") + bytes(1024)


def _uploads() -> Iterator[bytes]:
    pieces = bytes([6, 1])
    frames = b"".join(protocol.encode_upload_frame(each) for each in (b"abc", 40 * b"d"))
    yield pieces + frames + protocol.UPLOAD_END
    yield pieces + frames[:-1]
    yield pieces + struct.pack("<I", protocol.MAX_UPLOAD_FRAME + 1)


def _users() -> Iterator[bytes]:
    passwd, group = Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes()
    for user in (b"", b"www-data", b"0:0", b"root:adm", b"4294967294"):
        yield b"\0".join([user, passwd, group])
    yield b"u\0u:x:1:2:::/:\0a:x:5:u,v\nb:x:6:u"


def _conversations() -> Iterator[bytes]:
    def step(fds: int, kind: Kind, name: str = "", number: int = 0) -> bytes:
        request = encode_request(kind, name, number)
        return bytes([fds, len(request)]) + request

    put = step(0, Kind.PUT, "t-1", 2) + step(2, Kind.PART) + step(0, Kind.COMMIT)
    yield step(0, Kind.HELLO) + put + step(0, Kind.GET, "t-1") + step(0, Kind.REMOVE, "t-1")
    yield put + step(0, Kind.LIST) + step(0, Kind.PUT, "t-2", 3) + step(3, Kind.PART)
    yield step(0, Kind.END)


def _proc_files() -> Iterator[bytes]:
    made = {
        "fdinfo of a lock": _LOCK,
        "fdinfo of an epoll": _epoll_fdinfo(),
        "fdinfo of a timer": _TIMER_FDINFO,
        "timers": _POSIX_TIMERS,
        "sysvipc": _SYSVIPC,
    }
    for kind, name in enumerate(_PROC_FILES):
        text = made.get(name) or Path("/proc/self", name).read_text(errors="surrogateescape")
        yield bytes([kind]) + text[:8192].encode(errors="surrogateescape")


def _epoll_fdinfo() -> str:
    reader, writer = os.pipe()
    with select.epoll() as epoll:
        epoll.register(reader, select.EPOLLIN)
        epoll.register(writer, select.EPOLLOUT)
        text = Path(f"/proc/self/fdinfo/{epoll.fileno()}").read_text()
    os.close(reader)
    os.close(writer)
    return text


def _socket_table() -> bytes:
    """The kernel's answer about one pair of connected sockets."""
    diag_family, dump, header, request_size = 20, 0x301, 16, 24
    show_peer_and_queues = 4 | 8 | 16
    request = struct.pack("<IHHII", header + request_size, diag_family, dump, 1, 0)
    request += struct.pack(
        "<BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show_peer_and_queues, 0, 0
    )
    first, second = socket.socketpair()
    with first, second, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:
        asked.send(request)
        answer = asked.recv(65536)
    (size,) = struct.unpack_from("<I", answer)
    return answer[header:size]


def _resume_code() -> Iterator[bytes]:
    # What restore/tail.cc writes: enter the call, load its argument, set the mark, go on.
    load = b"\x48\xbf" + bytes(8)
    mark_and_jump = b"\xc6\x05\x10\0\0\0\x01" + b"\xff\x25\0\0\0\0" + bytes(8)
    yield b"\x0f\x05" + load + mark_and_jump
    yield load + mark_and_jump
    yield b"\xff\x25\0\0\0\0" + bytes(8)
