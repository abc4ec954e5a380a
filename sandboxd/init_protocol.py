"""Codec of everything that the daemon and sandbox-init say to each other.

The C half, with the meaning of every field, is ``kernel_helpers/include/venus_init_protocol.h``.
This module is pure: bytes in, values out. It opens nothing and keeps no state except in
:class:`RecordDecoder`.

Three formats:

* the setup plan: ``encode_plan(ops, policy)`` gives the bytes of the memfd that init executes;
* control packets on a ``SOCK_SEQPACKET`` socket: ``encode_*`` for requests, ``decode_packet`` for
  answers and events. The sender must raise ``SO_SNDBUF`` to ``SEND_BUFFER_SIZE`` or big packets
  fail with EMSGSIZE;
* results of file operations: ``RecordDecoder``, ``decode_file_error``, ``encode_upload_frame``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

PROTOCOL_VERSION = 1
MAX_PACKET_SIZE = 256 * 1024
SEND_BUFFER_SIZE = MAX_PACKET_SIZE
MAX_PACKET_FDS = 16
MAX_EXECS = 1024
MAX_STRINGS = 16384
MAX_RLIMITS = 16
MAX_CGROUP_PROCS = 8
MAX_PLAN_OPS = 512
MAX_PLAN_SIZE = 1024 * 1024
MAX_PLAN_SLOTS = 32
MAX_FILTER_INSTRUCTIONS = 4096
MAX_SANDBOX_ID = 64
MAX_UPLOAD_FRAME = 1024 * 1024
READ_TO_END = 2**64 - 1


class ProtocolError(ValueError):
    """Bytes that are not what the protocol allows, or values that it cannot carry."""


def _c_string(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if b"\0" in raw:
        raise ProtocolError(f"a string for init contains a NUL byte: {raw[:80]!r}")
    return raw + b"\0"


# ---- setup plan --------------------------------------------------------------------------------

_PLAN_MAGIC = 0x4E4C5056
_PLAN_HEADER = struct.Struct("<IHHIIQiIIIII")
_RLIMIT = struct.Struct("<IIQQ")
_PLAN_OP = struct.Struct("<IHHQQI3III")
_FILTER_INSTRUCTION_SIZE = 8
_FLAG_OPTIONAL = 1


@dataclass(frozen=True)
class Rlimit:
    """One ``setrlimit`` of an exec child. ``resource`` is the kernel's RLIMIT_* number."""

    resource: int
    soft: int
    hard: int


@dataclass(frozen=True)
class ExecPolicy:
    """What every exec child of a sandbox gets, besides no_new_privs, which is not negotiable."""

    sandbox_id: str
    capability_mask: int
    seccomp_filter: bytes = b""
    rlimits: tuple[Rlimit, ...] = ()
    oom_score_adj: int = 0
    umask: int = 0o022


@dataclass(frozen=True)
class _OpFields:
    flags: int = 0
    number: int = 0
    number2: int = 0
    slot: int = 0
    strings: tuple[str | bytes, ...] = ()
    data: bytes = b""


@dataclass(frozen=True)
class SetupOp:
    """One step of sandbox-init before READY. Paths are resolved by init, in its mount namespace:
    before PivotRoot in the host's tree, after it in the sandbox's."""

    KIND: ClassVar[int] = 0

    def _fields(self) -> _OpFields:
        return _OpFields()


@dataclass(frozen=True)
class UnshareCgroup(SetupOp):
    """New cgroup namespace, rooted where init is at this moment."""

    KIND: ClassVar[int] = 1


@dataclass(frozen=True)
class MountsPrivate(SetupOp):
    """Stops every mount of the namespace from receiving the host's mount events."""

    KIND: ClassVar[int] = 2


@dataclass(frozen=True)
class CloneMount(SetupOp):
    """Detached bind clone of ``path`` (a host device node) into ``slot``, for AttachMount."""

    path: str
    slot: int
    KIND: ClassVar[int] = 3

    def _fields(self) -> _OpFields:
        return _OpFields(slot=self.slot, strings=(self.path,))


@dataclass(frozen=True)
class PivotRoot(SetupOp):
    """Make the overlay that spawn mounted the root, or the directory ``new_root``, which init must
    be able to reach with the rights of the sandbox's root. The old tree stays mounted (but below the new root's reach)
    until DetachOldRoot, because the kernel lets a user namespace mount a fresh proc or sysfs only
    while it can still see one."""

    new_root: str = ""
    KIND: ClassVar[int] = 4

    def _fields(self) -> _OpFields:
        return _OpFields(strings=(self.new_root,))


@dataclass(frozen=True)
class DetachOldRoot(SetupOp):
    KIND: ClassVar[int] = 5


@dataclass(frozen=True)
class Mount(SetupOp):
    """``mount(2)`` of a new filesystem. ``flags`` are MS_*; init never takes MS_BIND here."""

    fstype: str
    target: str
    flags: int = 0
    data: str = ""
    KIND: ClassVar[int] = 6

    def _fields(self) -> _OpFields:
        return _OpFields(number=self.flags, strings=(self.fstype, self.target, self.data))


@dataclass(frozen=True)
class AttachMount(SetupOp):
    """Move the clone in ``slot`` onto ``path``; ``attributes`` (MOUNT_ATTR_*) are set first."""

    slot: int
    path: str
    attributes: int = 0
    KIND: ClassVar[int] = 7

    def _fields(self) -> _OpFields:
        return _OpFields(slot=self.slot, number=self.attributes, strings=(self.path,))


@dataclass(frozen=True)
class MakeDirectory(SetupOp):
    """An existing directory is fine and keeps its mode."""

    path: str
    mode: int = 0o755
    KIND: ClassVar[int] = 8

    def _fields(self) -> _OpFields:
        return _OpFields(number=self.mode, strings=(self.path,))


@dataclass(frozen=True)
class Symlink(SetupOp):
    target: str
    path: str
    KIND: ClassVar[int] = 9

    def _fields(self) -> _OpFields:
        return _OpFields(strings=(self.target, self.path))


@dataclass(frozen=True)
class WriteFile(SetupOp):
    """Create or overwrite a file (also sysctls, and empty files as mount targets). A symbolic
    link at ``path`` is replaced, never followed."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    KIND: ClassVar[int] = 10

    def _fields(self) -> _OpFields:
        return _OpFields(number=self.mode, strings=(self.path,), data=self.data)


@dataclass(frozen=True)
class BindReadOnly(SetupOp):
    path: str
    optional: bool = True
    KIND: ClassVar[int] = 11

    def _fields(self) -> _OpFields:
        return _OpFields(flags=_FLAG_OPTIONAL if self.optional else 0, strings=(self.path,))


@dataclass(frozen=True)
class MaskPath(SetupOp):
    """Hide a file behind the sandbox's /dev/null, a directory behind an empty read-only tmpfs.
    Needs /dev/null to be in place."""

    path: str
    optional: bool = True
    KIND: ClassVar[int] = 12

    def _fields(self) -> _OpFields:
        return _OpFields(flags=_FLAG_OPTIONAL if self.optional else 0, strings=(self.path,))


@dataclass(frozen=True)
class SetHostname(SetupOp):
    name: str
    KIND: ClassVar[int] = 13

    def _fields(self) -> _OpFields:
        return _OpFields(strings=(self.name,))


@dataclass(frozen=True)
class LoopbackUp(SetupOp):
    KIND: ClassVar[int] = 14


@dataclass(frozen=True)
class SetRlimit(SetupOp):
    """A limit of init itself, inherited by all execs."""

    resource: int
    soft: int
    hard: int
    KIND: ClassVar[int] = 15

    def _fields(self) -> _OpFields:
        return _OpFields(slot=self.resource, number=self.soft, number2=self.hard)


@dataclass(frozen=True)
class SetMode(SetupOp):
    path: str
    mode: int
    KIND: ClassVar[int] = 16

    def _fields(self) -> _OpFields:
        return _OpFields(number=self.mode, strings=(self.path,))


def _pad8(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def _encode_op(op: SetupOp) -> bytes:
    fields = op._fields()
    strings = [_c_string(text) for text in fields.strings]
    sizes = [len(text) for text in strings] + [0] * (3 - len(strings))
    body = b"".join(strings) + fields.data
    size = _PLAN_OP.size + len(body)
    size += -size % 8
    head = _PLAN_OP.pack(
        size,
        op.KIND,
        fields.flags,
        fields.number,
        fields.number2,
        fields.slot,
        *sizes,
        len(fields.data),
        0,
    )
    return _pad8(head + body)


def encode_rlimits(rlimits: Sequence[Rlimit]) -> bytes:
    if len(rlimits) > MAX_RLIMITS:
        raise ProtocolError(f"{len(rlimits)} rlimits, at most {MAX_RLIMITS} are allowed")
    return b"".join(_RLIMIT.pack(each.resource, 0, each.soft, each.hard) for each in rlimits)


def encode_plan(ops: Sequence[SetupOp], policy: ExecPolicy) -> bytes:
    """Bytes of the plan memfd."""
    if len(policy.seccomp_filter) % _FILTER_INSTRUCTION_SIZE:
        raise ProtocolError("the seccomp filter is not a whole number of struct sock_filter")
    filter_count = len(policy.seccomp_filter) // _FILTER_INSTRUCTION_SIZE
    sandbox_id = _c_string(policy.sandbox_id)
    if filter_count > MAX_FILTER_INSTRUCTIONS:
        raise ProtocolError(f"seccomp filter of {filter_count} instructions is too long")
    if len(ops) > MAX_PLAN_OPS:
        raise ProtocolError(f"setup plan of {len(ops)} operations, at most {MAX_PLAN_OPS}")
    if not 1 < len(sandbox_id) <= MAX_SANDBOX_ID:
        raise ProtocolError(f"sandbox id of {len(sandbox_id) - 1} bytes")
    body = encode_rlimits(policy.rlimits) + policy.seccomp_filter + _pad8(sandbox_id)
    body += b"".join(_encode_op(op) for op in ops)
    total = _PLAN_HEADER.size + len(body)
    if total > MAX_PLAN_SIZE:
        raise ProtocolError(f"setup plan of {total} bytes, at most {MAX_PLAN_SIZE}")
    return (
        _PLAN_HEADER.pack(
            _PLAN_MAGIC,
            PROTOCOL_VERSION,
            0,
            total,
            len(ops),
            policy.capability_mask,
            policy.oom_score_adj,
            policy.umask,
            len(policy.rlimits),
            filter_count,
            len(sandbox_id),
            0,
        )
        + body
    )


# ---- control packets ---------------------------------------------------------------------------

_HEADER = struct.Struct("<HHIQ")
_EXEC = struct.Struct("<QIIIIIIIIQQII")
_KILL = struct.Struct("<QII")
_EXEC_REF = struct.Struct("<Q")
_HELLO_REPLY = struct.Struct("<IIQII")
_STARTED = struct.Struct("<QiI")
_FAILED = struct.Struct("<QIi")
_ACK = struct.Struct("<QiI")
_EXIT = struct.Struct("<QIIIIQQQQ")
_EXEC_INFO_TAIL = struct.Struct("<iIIIII")
HEADER_SIZE = _HEADER.size


class MessageType(enum.IntEnum):
    HELLO = 1
    EXEC = 2
    KILL = 3
    STDIN_CLOSED = 4
    RELEASE = 5
    LIST = 6
    SHUTDOWN = 7
    HELLO_REPLY = 0x81
    STARTED = 0x82
    FAILED = 0x83
    ACK = 0x84
    EXEC_INFO = 0x85
    LIST_END = 0x86
    ERROR = 0x87
    EXITED = 0xC1


class ExecKind(enum.IntEnum):
    PROGRAM = 0
    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MKDIR = 5
    REMOVE = 6
    RENAME = 7
    CHMOD = 8


class FileFlag(enum.IntFlag):
    PARENTS = 1
    FOLLOW = 2
    RECURSIVE = 4
    NO_REPLACE = 8


class FdBit(enum.IntFlag):
    STDIN = 1 << 0
    STDOUT = 1 << 1
    STDERR = 1 << 2
    KEEP_STDIN = 1 << 3
    KEEP_STDOUT = 1 << 4
    KEEP_STDERR = 1 << 5
    CGROUP_PROCS = 1 << 6
    CGROUP_KILL = 1 << 7


class ExecStep(enum.IntEnum):
    """Where an exec failed before its program ran."""

    REQUEST = 1
    FORK = 2
    SESSION = 3
    CGROUP = 4
    DESCRIPTORS = 5
    OOM_SCORE = 6
    RLIMIT = 7
    CAPABILITIES = 8
    USER = 9
    CREDENTIALS = 10
    CWD = 11
    SECCOMP = 12
    EXEC = 13


class ExecState(enum.IntEnum):
    STARTING = 1
    RUNNING = 2
    EXITED = 3


class ExitFlag(enum.IntFlag):
    TIMED_OUT = 1
    KILLED_BY_REQUEST = 2
    CORE_DUMPED = 4


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


def read_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    offset: int = 0,
    length: int = READ_TO_END,
    timeout_ms: int = 0,
) -> ExecRequest:
    """The file's bytes on stdout."""
    return ExecRequest(
        exec_id, (path,), ExecKind.READ, user, cwd, None, timeout_ms, (), offset, length
    )


def write_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    mode: int = 0o644,
    parents: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """Upload frames on stdin; an existing regular file keeps its mode and owner."""
    flags = FileFlag.PARENTS if parents else 0
    return ExecRequest(
        exec_id, (path,), ExecKind.WRITE, user, cwd, None, timeout_ms, (), mode, flags
    )


def list_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    depth: int = 1,
    max_entries: int = 10_000,
    timeout_ms: int = 0,
) -> ExecRequest:
    """Entry records on stdout, then the end record."""
    return ExecRequest(
        exec_id, (path,), ExecKind.LIST, user, cwd, None, timeout_ms, (), depth, max_entries
    )


def stat_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    follow: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """One entry record on stdout, then the end record."""
    flags = FileFlag.FOLLOW if follow else 0
    return ExecRequest(exec_id, (path,), ExecKind.STAT, user, cwd, None, timeout_ms, (), 0, flags)


def mkdir_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    mode: int = 0o755,
    parents: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """With ``parents`` an existing directory is fine, as with ``mkdir -p``."""
    flags = FileFlag.PARENTS if parents else 0
    return ExecRequest(
        exec_id, (path,), ExecKind.MKDIR, user, cwd, None, timeout_ms, (), mode, flags
    )


def remove_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    recursive: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """Never follows a symbolic link; without ``recursive`` a directory must be empty."""
    flags = FileFlag.RECURSIVE if recursive else 0
    return ExecRequest(exec_id, (path,), ExecKind.REMOVE, user, cwd, None, timeout_ms, (), 0, flags)


def rename_request(
    exec_id: int,
    source: str | bytes,
    target: str | bytes,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    no_replace: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    flags = FileFlag.NO_REPLACE if no_replace else 0
    argv = (source, target)
    return ExecRequest(exec_id, argv, ExecKind.RENAME, user, cwd, None, timeout_ms, (), 0, flags)


def chmod_request(
    exec_id: int,
    path: str | bytes,
    mode: int,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    timeout_ms: int = 0,
) -> ExecRequest:
    return ExecRequest(exec_id, (path,), ExecKind.CHMOD, user, cwd, None, timeout_ms, (), mode, 0)


def _packet(kind: MessageType, request_id: int, payload: bytes = b"") -> bytes:
    if _HEADER.size + len(payload) > MAX_PACKET_SIZE:
        raise ProtocolError(
            f"{kind.name} of {_HEADER.size + len(payload)} bytes, at most {MAX_PACKET_SIZE}"
        )
    return _HEADER.pack(PROTOCOL_VERSION, kind, len(payload), request_id) + payload


def encode_hello(request_id: int) -> bytes:
    return _packet(MessageType.HELLO, request_id)


def encode_list(request_id: int) -> bytes:
    return _packet(MessageType.LIST, request_id)


def encode_shutdown(request_id: int) -> bytes:
    return _packet(MessageType.SHUTDOWN, request_id)


def encode_exec(request_id: int, request: ExecRequest, fds: ExecFds) -> bytes:
    """The packet; send it with ``fds.in_order()`` attached."""
    env = [
        _c_string(f"{name}={value}")
        for name, value in (request.env or {}).items()
        if _check_env_name(name)
    ]
    argv = [_c_string(argument) for argument in request.argv]
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
    strings = _c_string(request.user) + _c_string(request.cwd) + b"".join(argv) + b"".join(env)
    head = _EXEC.pack(
        request.exec_id,
        request.kind,
        0,
        fds.mask(),
        len(fds.cgroup_procs),
        request.timeout_ms,
        len(request.rlimits),
        len(argv),
        len(env),
        request.number0,
        request.number1,
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


def encode_release(request_id: int, exec_id: int) -> bytes:
    return _packet(MessageType.RELEASE, request_id, _EXEC_REF.pack(exec_id))


@dataclass(frozen=True)
class HelloReply:
    request_id: int
    protocol_version: int
    exec_count: int
    uptime_ms: int
    sandbox_id: str


@dataclass(frozen=True)
class Started:
    request_id: int
    exec_id: int
    pid: int


@dataclass(frozen=True)
class Failed:
    """The exec never ran; init has forgotten it, no RELEASE is due."""

    request_id: int
    exec_id: int
    step: ExecStep
    errno: int


@dataclass(frozen=True)
class Ack:
    """Answer to KILL, STDIN_CLOSED, RELEASE. ``errno`` 0 is success."""

    request_id: int
    exec_id: int
    errno: int


@dataclass(frozen=True)
class RequestError:
    """Init could not understand the packet."""

    request_id: int
    errno: int


@dataclass(frozen=True)
class Exited:
    """Event, and part of ExecInfo. Exactly one of ``exit_code`` and ``signal`` is set."""

    exec_id: int
    exit_code: int | None
    signal: int | None
    timed_out: bool
    killed_by_request: bool
    core_dumped: bool
    user_us: int
    system_us: int
    max_rss_kib: int
    duration_us: int


@dataclass(frozen=True)
class ExecInfo:
    """One exec of LIST. ``fd_mask`` names the descriptors that came with the packet, in order."""

    request_id: int
    exec_id: int
    pid: int
    state: ExecState
    kind: ExecKind
    fd_mask: FdBit
    timeout_ms: int
    remaining_ms: int
    exited: Exited | None


@dataclass(frozen=True)
class ListEnd:
    request_id: int


Answer = HelloReply | Started | Failed | Ack | RequestError | Exited | ExecInfo | ListEnd


def _decode_exit(payload: bytes) -> Exited:
    exec_id, how, code, flags, _, user_us, system_us, max_rss_kib, duration_us = _EXIT.unpack(
        payload
    )
    return Exited(
        exec_id=exec_id,
        exit_code=code if how == 0 else None,
        signal=code if how == 1 else None,
        timed_out=bool(flags & ExitFlag.TIMED_OUT),
        killed_by_request=bool(flags & ExitFlag.KILLED_BY_REQUEST),
        core_dumped=bool(flags & ExitFlag.CORE_DUMPED),
        user_us=user_us,
        system_us=system_us,
        max_rss_kib=max_rss_kib,
        duration_us=duration_us,
    )


def _decode_exec_info(request_id: int, payload: bytes) -> ExecInfo:
    exited = _decode_exit(payload[: _EXIT.size])
    pid, state, kind, fd_mask, timeout_ms, remaining_ms = _EXEC_INFO_TAIL.unpack(
        payload[_EXIT.size :]
    )
    return ExecInfo(
        request_id=request_id,
        exec_id=exited.exec_id,
        pid=pid,
        state=ExecState(state),
        kind=ExecKind(kind),
        fd_mask=FdBit(fd_mask),
        timeout_ms=timeout_ms,
        remaining_ms=remaining_ms,
        exited=exited if state == ExecState.EXITED else None,
    )


def _decode_hello_reply(request_id: int, payload: bytes) -> HelloReply:
    version, exec_count, uptime_ms, id_size, _ = _HELLO_REPLY.unpack_from(payload)
    text = payload[_HELLO_REPLY.size :]
    if len(text) != id_size or not text.endswith(b"\0"):
        raise ProtocolError("HELLO_REPLY with a bad sandbox id")
    return HelloReply(request_id, version, exec_count, uptime_ms, text[:-1].decode())


def decode_packet(packet: bytes) -> Answer:
    """One packet from init. Raises ProtocolError on anything that init does not send."""
    try:
        version, kind, payload_size, request_id = _HEADER.unpack_from(packet)
        payload = packet[_HEADER.size :]
        if version != PROTOCOL_VERSION or payload_size != len(payload):
            raise ProtocolError(f"packet of version {version}, {len(payload)} bytes of payload")
        match kind:
            case MessageType.HELLO_REPLY:
                return _decode_hello_reply(request_id, payload)
            case MessageType.STARTED:
                exec_id, pid, _ = _STARTED.unpack(payload)
                return Started(request_id, exec_id, pid)
            case MessageType.FAILED:
                exec_id, step, error = _FAILED.unpack(payload)
                return Failed(request_id, exec_id, ExecStep(step), error)
            case MessageType.ACK:
                exec_id, error, _ = _ACK.unpack(payload)
                return Ack(request_id, exec_id, error)
            case MessageType.ERROR:
                _, error, _ = _ACK.unpack(payload)
                return RequestError(request_id, error)
            case MessageType.EXEC_INFO:
                return _decode_exec_info(request_id, payload)
            case MessageType.LIST_END:
                return ListEnd(request_id)
            case MessageType.EXITED:
                return _decode_exit(payload)
    except (struct.error, ValueError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"malformed packet from init: {error}") from error
    raise ProtocolError(f"packet of unknown type {kind} from init")


# ---- results of file operations ----------------------------------------------------------------

_FILE_ERROR_MAGIC = 0x52455656
_FILE_ERROR = struct.Struct("<Ii")
_RECORD = struct.Struct("<IHHIIIIQqQII")
_RECORD_ENTRY = 1
_RECORD_END = 2
_RECORD_TRUNCATED = 1
_MAX_RECORD_SIZE = _RECORD.size + 2 * 65536
UPLOAD_END = struct.pack("<I", 0)


def encode_upload_frame(chunk: bytes) -> bytes:
    """One frame of the stdin of a WRITE; finish with UPLOAD_END, or nothing is written."""
    if not 0 < len(chunk) <= MAX_UPLOAD_FRAME:
        raise ProtocolError(f"upload frame of {len(chunk)} bytes")
    return struct.pack("<I", len(chunk)) + chunk


def decode_file_error(stderr: bytes) -> int | None:
    """errno of a failed file operation (exit code 1), or None if stderr holds no such record."""
    if len(stderr) < _FILE_ERROR.size:
        return None
    magic, error = _FILE_ERROR.unpack_from(stderr)
    return int(error) if magic == _FILE_ERROR_MAGIC else None


@dataclass(frozen=True)
class FileRecord:
    """One file. ``path`` is relative to the listed directory, or as asked for by STAT. Names are
    bytes in Linux: undecodable ones come through as surrogate escapes."""

    path: str
    mode: int
    uid: int
    gid: int
    link_count: int
    size_bytes: int
    mtime_ns: int
    inode: int
    target: str | None


class RecordDecoder:
    """Takes the stdout of LIST or STAT in any pieces. The result is whole only if ``complete``."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.complete = False
        self.truncated = False

    def feed(self, data: bytes) -> list[FileRecord]:
        self._pending += data
        records: list[FileRecord] = []
        while len(self._pending) >= _RECORD.size:
            fields = _RECORD.unpack_from(self._pending)
            size, kind, flags, *_, path_size, target_size = fields
            if (
                self.complete
                or kind not in (_RECORD_ENTRY, _RECORD_END)
                or size != _RECORD.size + path_size + target_size
                or size > _MAX_RECORD_SIZE
            ):
                raise ProtocolError(f"malformed file record: kind {kind}, {size} bytes")
            if len(self._pending) < size:
                break
            path = bytes(self._pending[_RECORD.size : _RECORD.size + path_size])
            target = bytes(self._pending[_RECORD.size + path_size : size])
            del self._pending[:size]
            if kind == _RECORD_END:
                self.complete = True
                self.truncated = bool(flags & _RECORD_TRUNCATED)
                continue
            records.append(
                FileRecord(
                    path=path.decode("utf-8", "surrogateescape"),
                    mode=fields[3],
                    uid=fields[4],
                    gid=fields[5],
                    link_count=fields[6],
                    size_bytes=fields[7],
                    mtime_ns=fields[8],
                    inode=fields[9],
                    target=target.decode("utf-8", "surrogateescape") if target_size else None,
                )
            )
        return records
