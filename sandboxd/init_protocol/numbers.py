"""Numbers that requests and answers share."""

from __future__ import annotations

import enum
import struct

HEADER = struct.Struct("<HHIQ")


class MessageType(enum.IntEnum):
    HELLO = 1
    EXEC = 2
    KILL = 3
    STDIN_CLOSED = 4
    RELEASE = 5
    LIST = 6
    SHUTDOWN = 7
    KEEP_TERMINAL = 8
    SOCKET = 9
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
    RESTORE = 9
    RESTORED = 10
    CHOWN = 11
    TAR = 12
    UNTAR = 13
    WATCH = 14


class FileFlag(enum.IntFlag):
    PARENTS = 1
    FOLLOW = 2
    RECURSIVE = 4
    NO_REPLACE = 8
    SET_MODE = 16
    OWNERS = 32


class ExecFlag(enum.IntFlag):
    TERMINAL = 1


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
    RESTORE = 14
    TERMINAL = 15


class ExecState(enum.IntEnum):
    STARTING = 1
    RUNNING = 2
    EXITED = 3


class ExitFlag(enum.IntFlag):
    TIMED_OUT = 1
    KILLED_BY_REQUEST = 2
    CORE_DUMPED = 4
