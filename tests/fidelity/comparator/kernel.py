"""System calls that Python has no name for, and what they answer about another process."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS = {
    "tee": 276, "get_robust_list": 274, "ioprio_get": 252, "kcmp": 312, "sched_getattr": 315,
    "pidfd_getfd": 438,
}  # fmt: skip
PAGE = 4096


def call(name: str, *arguments: object) -> int:
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(_SYS[name]), *values)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


# --- ptrace: only by the thread that has stopped the other one ---

GETREGS, PEEKSIGINFO, GETREGSET = 12, 0x4209, 0x4204
GETSIGMASK, GET_FILTER, GET_RSEQ = 0x420A, 0x420C, 0x420F
NT_X86_XSTATE = 0x202
_SHARED_QUEUE = 1
REGISTERS = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi",
    "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs",
    "gs",
]  # fmt: skip


def _trace(request: int, tid: int, address: object, data: object) -> int:
    result: int = _LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(tid), address, data)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
    return result


def registers(tid: int) -> dict[str, int]:
    buffer = ctypes.create_string_buffer(8 * len(REGISTERS))
    _trace(GETREGS, tid, None, buffer)
    return dict(zip(REGISTERS, struct.unpack(f"{len(REGISTERS)}Q", buffer.raw), strict=True))


def xstate(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(16384)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(buffer))
    _trace(GETREGSET, tid, ctypes.c_void_p(NT_X86_XSTATE), vector)
    return buffer.raw[: vector[1]]


def signal_mask(tid: int) -> int:
    mask = ctypes.c_uint64()
    _trace(GETSIGMASK, tid, ctypes.c_void_p(8), ctypes.byref(mask))
    return mask.value


def pending_signals(tid: int, of_process: bool) -> list[bytes]:
    found: list[bytes] = []
    while True:
        request = struct.pack("QIi", len(found), _SHARED_QUEUE if of_process else 0, 1)
        buffer = ctypes.create_string_buffer(128)
        if _trace(PEEKSIGINFO, tid, request, buffer) == 0:
            return found
        found.append(buffer.raw)


def rseq(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(24)
    _trace(GET_RSEQ, tid, ctypes.c_void_p(len(buffer)), buffer)
    return buffer.raw


def seccomp_filters(tid: int) -> Iterator[bytes]:
    """Oldest first."""
    for index in range(64):
        try:
            count = _trace(GET_FILTER, tid, ctypes.c_void_p(index), None)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return
            raise
        program = ctypes.create_string_buffer(8 * count)
        _trace(GET_FILTER, tid, ctypes.c_void_p(index), program)
        yield program.raw


# --- of a thread, by its number ---


def robust_list(tid: int) -> tuple[int, int]:
    head, size = ctypes.c_uint64(), ctypes.c_uint64()
    call("get_robust_list", tid, ctypes.byref(head), ctypes.byref(size))
    return head.value, size.value


_SCHEDULING = (
    "size", "policy", "flags", "nice", "priority", "runtime", "deadline", "period", "util_min",
    "util_max",
)  # fmt: skip


def scheduling(tid: int) -> dict[str, int]:
    buffer = ctypes.create_string_buffer(56)
    call("sched_getattr", tid, buffer, len(buffer), 0)
    return dict(zip(_SCHEDULING, struct.unpack("IIQiIQQQII", buffer.raw), strict=True))


def io_priority(tid: int) -> int:
    return call("ioprio_get", 1, tid)


def shares(what: int, a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two processes share a table, or two of their descriptors an open file (what 0)."""
    return call("kcmp", a[0], b[0], what, a[1], b[1]) == 0


# --- pages ---


@dataclass(frozen=True)
class PageRun:
    start: int
    end: int
    categories: int


FILE, PRESENT, SWAPPED, ZERO_PAGE, GUARD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 8
_PAGEMAP_SCAN = (3 << 30) | (96 << 16) | (ord("f") << 8) | 16
_RUNS_AT_ONCE = 1024


def page_runs(pagemap: int, start: int, end: int) -> Iterator[PageRun]:
    """The pages of an area that exist, in page tables or in swap, or are guards."""
    vector = (ctypes.c_uint64 * (3 * _RUNS_AT_ONCE))()
    wanted = PRESENT | SWAPPED | GUARD
    while start < end:
        argument = bytearray(
            struct.pack(
                "12Q", 96, 0, start, end, 0, ctypes.addressof(vector), _RUNS_AT_ONCE, 0, 0, 0,
                wanted, wanted | FILE | ZERO_PAGE,
            )
        )  # fmt: skip
        count = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, argument)
        for index in range(count):
            yield PageRun(*vector[3 * index : 3 * index + 3])
        start = struct.unpack_from("Q", argument, 4 * 8)[0]
