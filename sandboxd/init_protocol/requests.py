"""Packets from the daemon to init."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxd.init_protocol.numbers import (
    HEADER,
    ExecFlag,
    ExecKind,
    FdBit,
    MessageType,
)
from sandboxd.init_protocol.plan import (
    Rlimit,
    encode_rlimits,
)
from sandboxd.init_protocol.wire import (
    MAX_CGROUP_PROCS,
    MAX_PACKET_SIZE,
    MAX_STRINGS,
    PROTOCOL_VERSION,
    ProtocolError,
    c_string,
)

_EXEC = struct.Struct("<QIIIIIIIIQQII")
_KILL = struct.Struct("<QII")
_EXEC_REF = struct.Struct("<Q")
_SOCKET = struct.Struct("<II")


@dataclass(frozen=True)
class ExecFds:
    """Descriptors that go with an EXEC. ``stdin``, ``stdout``, ``stderr`` are the child's ends
    (``None`` = /dev/null); ``keep_*`` the daemon's ends, of which init keeps duplicates."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    keep_stdin: int | None = None
    keep_stdout: int | None = None
    keep_stderr: int | None = None
    cgroup_procs: tuple[int, ...] = ()
    cgroup_kill: int | None = None

    def mask(self) -> FdBit:
        mask = FdBit(0)
        for bit, value in (
            (FdBit.STDIN, self.stdin),
            (FdBit.STDOUT, self.stdout),
            (FdBit.STDERR, self.stderr),
            (FdBit.KEEP_STDIN, self.keep_stdin),
            (FdBit.KEEP_STDOUT, self.keep_stdout),
            (FdBit.KEEP_STDERR, self.keep_stderr),
            (FdBit.CGROUP_KILL, self.cgroup_kill),
        ):
            if value is not None:
                mask |= bit
        if self.cgroup_procs:
            mask |= FdBit.CGROUP_PROCS
        return mask

    def in_order(self) -> list[int]:
        """What to pass to ``socket.send_fds``."""
        single = (
            self.stdin,
            self.stdout,
            self.stderr,
            self.keep_stdin,
            self.keep_stdout,
            self.keep_stderr,
        )
        fds = [fd for fd in single if fd is not None]
        fds += self.cgroup_procs
        if self.cgroup_kill is not None:
            fds.append(self.cgroup_kill)
        return fds


@dataclass(frozen=True)
class ExecRequest:
    """A program or a file operation. For file operations ``argv`` holds the path (RENAME: from,
    to) and ``number0``/``number1`` what the table in the C header says; the ``*_request``
    functions below build them."""

    exec_id: int
    argv: tuple[str | bytes, ...]
    kind: ExecKind = ExecKind.PROGRAM
    user: str = ""
    cwd: str | bytes = ""
    env: Mapping[str, str] | None = None
    timeout_ms: int = 0
    rlimits: tuple[Rlimit, ...] = ()
    number0: int = 0
    number1: int = 0
    terminal: tuple[int, int] | None = None
    """Rows and columns of the terminal that a PROGRAM gets, which stands for all of its streams."""


def _packet(kind: MessageType, request_id: int, payload: bytes = b"") -> bytes:
    if HEADER.size + len(payload) > MAX_PACKET_SIZE:
        raise ProtocolError(
            f"{kind.name} of {HEADER.size + len(payload)} bytes, at most {MAX_PACKET_SIZE}"
        )
    return HEADER.pack(PROTOCOL_VERSION, kind, len(payload), request_id) + payload


def encode_hello(request_id: int) -> bytes:
    return _packet(MessageType.HELLO, request_id)


def encode_list(request_id: int) -> bytes:
    return _packet(MessageType.LIST, request_id)


def encode_shutdown(request_id: int) -> bytes:
    return _packet(MessageType.SHUTDOWN, request_id)


def encode_exec(request_id: int, request: ExecRequest, fds: ExecFds) -> bytes:
    """The packet; send it with ``fds.in_order()`` attached."""
    env = [
        c_string(f"{name}={value}")
        for name, value in (request.env or {}).items()
        if _check_env_name(name)
    ]
    argv = [c_string(argument) for argument in request.argv]
    if not argv:
        raise ProtocolError("argv is empty")
    if len(argv) + len(env) > MAX_STRINGS:
        raise ProtocolError(
            f"{len(argv)} arguments and {len(env)} variables, at most {MAX_STRINGS}"
        )
    if len(fds.cgroup_procs) > MAX_CGROUP_PROCS:
        raise ProtocolError(f"{len(fds.cgroup_procs)} cgroups, at most {MAX_CGROUP_PROCS}")
    if not 0 <= request.timeout_ms < 2**32:
        raise ProtocolError(f"timeout of {request.timeout_ms} ms is out of range")
    strings = c_string(request.user) + c_string(request.cwd) + b"".join(argv) + b"".join(env)
    head = _EXEC.pack(
        request.exec_id,
        request.kind,
        0 if request.terminal is None else ExecFlag.TERMINAL,
        fds.mask(),
        len(fds.cgroup_procs),
        request.timeout_ms,
        len(request.rlimits),
        len(argv),
        len(env),
        *(request.terminal or (request.number0, request.number1)),
        len(strings),
        0,
    )
    return _packet(MessageType.EXEC, request_id, head + encode_rlimits(request.rlimits) + strings)


def _check_env_name(name: str) -> bool:
    if not name or "=" in name:
        raise ProtocolError(f"{name!r} is no name of an environment variable")
    return True


def encode_kill(request_id: int, exec_id: int, signal: int, *, whole_tree: bool) -> bytes:
    return _packet(MessageType.KILL, request_id, _KILL.pack(exec_id, signal, int(whole_tree)))


def encode_stdin_closed(request_id: int, exec_id: int) -> bytes:
    return _packet(MessageType.STDIN_CLOSED, request_id, _EXEC_REF.pack(exec_id))


def encode_keep_terminal(request_id: int, exec_id: int) -> bytes:
    """The packet; send it with the terminal's master attached."""
    return _packet(MessageType.KEEP_TERMINAL, request_id, _EXEC_REF.pack(exec_id))


def encode_socket(request_id: int, family: int) -> bytes:
    return _packet(MessageType.SOCKET, request_id, _SOCKET.pack(family, 0))


def encode_release(request_id: int, exec_id: int) -> bytes:
    return _packet(MessageType.RELEASE, request_id, _EXEC_REF.pack(exec_id))
