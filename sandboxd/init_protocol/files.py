"""File operations: the requests, and what they answer on stdin, stdout and stderr."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sandboxd.init_protocol.numbers import (
    ExecKind,
    FileFlag,
)
from sandboxd.init_protocol.requests import (
    ExecRequest,
)
from sandboxd.init_protocol.wire import (
    MAX_UPLOAD_FRAME,
    READ_TO_END,
    ProtocolError,
)

_FILE_ERROR_MAGIC = 0x52455656
_FILE_ERROR = struct.Struct("<Ii")
_RECORD = struct.Struct("<IHHIIIIQqQII")
_RECORD_ENTRY = 1
_RECORD_END = 2
_RECORD_TRUNCATED = 1
_MAX_RECORD_SIZE = _RECORD.size + 2 * 65536
UPLOAD_END = struct.pack("<I", 0)


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
    set_mode: bool = False,
    owner: str = "",
    parents: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """Upload frames on stdin; an existing regular file keeps its owner, unless one is named, and
    its mode, unless ``set_mode``."""
    flags = FileFlag.PARENTS if parents else FileFlag(0)
    if set_mode:
        flags |= FileFlag.SET_MODE
    return ExecRequest(
        exec_id, (path, owner), ExecKind.WRITE, user, cwd, None, timeout_ms, (), mode, flags
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


def chown_request(
    exec_id: int,
    path: str | bytes,
    owner: str,
    *,
    user: str = "",
    cwd: str | bytes = "/",
    timeout_ms: int = 0,
) -> ExecRequest:
    """``owner``: ``user``, which stands for its own group too, ``user:group`` or ``:group``."""
    return ExecRequest(exec_id, (path, owner), ExecKind.CHOWN, user, cwd, None, timeout_ms)


def tar_request(
    exec_id: int, path: str | bytes, *, user: str = "", timeout_ms: int = 0
) -> ExecRequest:
    """A tar archive of what is below a directory on stdout."""
    return ExecRequest(exec_id, (path,), ExecKind.TAR, user, "/", None, timeout_ms)


def untar_request(
    exec_id: int,
    path: str | bytes,
    *,
    user: str = "",
    owners: bool = False,
    timeout_ms: int = 0,
) -> ExecRequest:
    """A tar archive in upload frames on stdin; ``owners``: as it has them, else the user."""
    flags = FileFlag.OWNERS if owners else FileFlag(0)
    return ExecRequest(exec_id, (path,), ExecKind.UNTAR, user, "/", None, timeout_ms, (), 0, flags)


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


def decode_failed_path(stderr: bytes) -> str:
    """Where a failed operation on many files stood; empty: it says nothing of the kind."""
    return stderr[_FILE_ERROR.size :].decode("utf-8", "replace")


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
