"""The setup plan: what init does before READY, and the policy of its exec children."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sandboxd.init_protocol.wire import (
    MAX_FILTER_INSTRUCTIONS,
    MAX_PLAN_OPS,
    MAX_PLAN_SIZE,
    MAX_RLIMITS,
    MAX_SANDBOX_ID,
    PROTOCOL_VERSION,
    ProtocolError,
    c_string,
)

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
    be able to reach with the rights of the sandbox's root. The old tree stays mounted (out of the
    reach of paths) until DetachOldRoot, because the kernel lets a user namespace mount a fresh
    proc or sysfs only while it can still see one."""

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


# Nearly all operations of a plan are those of every plan.
@functools.lru_cache(maxsize=512)
def _encode_op(op: SetupOp) -> bytes:
    fields = op._fields()
    strings = [c_string(text) for text in fields.strings]
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
    sandbox_id = c_string(policy.sandbox_id)
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
