"""Files of a sandbox, by init's own operations: with the sandbox's rights, seen from its root.

The daemon never resolves a path that a sandbox controls; it moves bytes between the client and a
short-lived child of init. An upload becomes a file only with its end mark, which is sent only when
the client's body came whole.
"""

from __future__ import annotations

import asyncio
import json
import re
import stat as stat_bits
from collections.abc import AsyncGenerator, AsyncIterator

from sandboxd import init_protocol
from sandboxd.errors import InternalError, InvalidRequest
from sandboxd.file_operation import FileTarget, check_path, download, run, upload
from sandboxd.init_protocol import FileRecord, RecordDecoder

__all__ = ["FileTarget"]

# Whoever stalls (a FIFO without a writer, a client that does not read) is cut after this.
OPERATION_TIMEOUT_MS = 30_000
TRANSFER_TIMEOUT_MS = 3_600_000
MAX_LIST_DEPTH = 64
MAX_LIST_ENTRIES = 20_000
NEW_FILE_MODE = 0o644
_OWNER = re.compile(r"[^\0/:]{0,64}(:[^\0/:]{1,64})?")

_TYPE_NAMES = {
    stat_bits.S_IFREG: "file",
    stat_bits.S_IFDIR: "directory",
    stat_bits.S_IFLNK: "symlink",
    stat_bits.S_IFIFO: "fifo",
    stat_bits.S_IFSOCK: "socket",
    stat_bits.S_IFCHR: "char_device",
    stat_bits.S_IFBLK: "block_device",
}


def read(target: FileTarget) -> AsyncGenerator[bytes, None]:
    """The file's bytes. Errors come with the first chunk, or, should it fail on the way, later."""
    return download(
        target,
        "read file",
        lambda exec_id: init_protocol.read_request(
            exec_id, target.path, user=target.user, timeout_ms=TRANSFER_TIMEOUT_MS
        ),
    )


async def write(
    target: FileTarget,
    mode: int | None,
    body: AsyncIterator[bytes],
    *,
    max_bytes: int,
    owner: str = "",
) -> None:
    """Create or replace the file with all of `body`, or leave everything as it was.

    `mode` None: that of the file that is there, else 0644. `owner`: see `change_owner`; empty: that
    of the file that is there, else the user. `body` raises when the client's upload is cut.
    """
    check_owner(owner)
    await upload(
        target,
        "write file",
        lambda exec_id: init_protocol.write_request(
            exec_id,
            target.path,
            user=target.user,
            mode=NEW_FILE_MODE if mode is None else mode,
            set_mode=mode is not None,
            owner=owner,
            parents=True,
            timeout_ms=TRANSFER_TIMEOUT_MS,
        ),
        body,
        max_bytes,
    )


async def stat(target: FileTarget, *, follow: bool = False) -> dict[str, object]:
    """The entry itself; of a symbolic link, with `follow`, what it leads to."""
    entries, _ = _records(
        await run(
            target,
            "stat file",
            lambda exec_id: init_protocol.stat_request(
                exec_id,
                target.path,
                user=target.user,
                follow=follow,
                timeout_ms=OPERATION_TIMEOUT_MS,
            ),
        )
    )
    if len(entries) != 1:
        raise InternalError("init gave no entry", operation="stat file", object=target.path)
    return _entry(entries[0], target.path)


async def list_directory(target: FileTarget, depth: int) -> bytes:
    """JSON of the entries below the directory, and of whether there are more than may be listed."""
    content = await _list(target, depth)

    def encode() -> bytes:
        entries, truncated = _listing(content, target.path)
        return json.dumps({"entries": entries, "truncated": truncated}).encode()

    # A sandbox can make this some hundred milliseconds of work, in which others are served too.
    return await asyncio.to_thread(encode)


async def list_entries(target: FileTarget, depth: int) -> tuple[list[dict[str, object]], bool]:
    """As `list_directory`, as values."""
    content = await _list(target, depth)
    return await asyncio.to_thread(_listing, content, target.path)


async def _list(target: FileTarget, depth: int) -> bytes:
    if not 1 <= depth <= MAX_LIST_DEPTH:
        raise InvalidRequest(
            f"{depth} is out of bounds",
            operation="list directory",
            object="field depth",
            cause=f"it must be between 1 and {MAX_LIST_DEPTH}",
        )
    return await run(
        target,
        "list directory",
        lambda exec_id: init_protocol.list_request(
            exec_id,
            target.path,
            user=target.user,
            depth=depth,
            max_entries=MAX_LIST_ENTRIES,
            timeout_ms=OPERATION_TIMEOUT_MS,
        ),
    )


def _listing(content: bytes, root: str) -> tuple[list[dict[str, object]], bool]:
    records, truncated = _records(content)
    root = root.rstrip("/")
    return [_entry(record, f"{root}/{record.path}") for record in records], truncated


async def make_directory(target: FileTarget, mode: int, *, parents: bool) -> None:
    """As mkdir(1), with `-p` when `parents`."""
    await run(
        target,
        "make directory",
        lambda exec_id: init_protocol.mkdir_request(
            exec_id,
            target.path,
            user=target.user,
            mode=mode,
            parents=parents,
            timeout_ms=OPERATION_TIMEOUT_MS,
        ),
    )


async def remove(target: FileTarget, *, recursive: bool) -> None:
    """Never through a symbolic link."""
    await run(
        target,
        "remove file",
        lambda exec_id: init_protocol.remove_request(
            exec_id,
            target.path,
            user=target.user,
            recursive=recursive,
            timeout_ms=OPERATION_TIMEOUT_MS,
        ),
    )


async def rename(target: FileTarget, new_path: str, *, replace: bool) -> None:
    """Give it another name on the same filesystem; without `replace`, `Conflict` when that is
    taken."""
    check_path(new_path)
    await run(
        target,
        "rename file",
        lambda exec_id: init_protocol.rename_request(
            exec_id,
            target.path,
            new_path,
            user=target.user,
            no_replace=not replace,
            timeout_ms=OPERATION_TIMEOUT_MS,
        ),
    )


async def change_mode(target: FileTarget, mode: int) -> None:
    """As chmod(1); a symbolic link is followed."""
    await run(
        target,
        "change mode",
        lambda exec_id: init_protocol.chmod_request(
            exec_id, target.path, mode, user=target.user, timeout_ms=OPERATION_TIMEOUT_MS
        ),
    )


async def change_owner(target: FileTarget, owner: str) -> None:
    """As chown(1); a symbolic link is followed. `owner`: a user of the sandbox by name or number,
    which stands for its own group too, `USER:GROUP`, or `:GROUP`."""
    check_owner(owner)
    await run(
        target,
        "change owner",
        lambda exec_id: init_protocol.chown_request(
            exec_id, target.path, owner, user=target.user, timeout_ms=OPERATION_TIMEOUT_MS
        ),
    )


def check_owner(owner: str) -> None:
    """`InvalidRequest` for what no sandbox can take for an owner."""
    if not _OWNER.fullmatch(owner):
        raise InvalidRequest(
            "the owner is refused",
            operation="file operation",
            object=owner[:200],
            cause="it must be USER, USER:GROUP or :GROUP",
        )


def _records(content: bytes) -> tuple[list[FileRecord], bool]:
    decoder = RecordDecoder()
    records = decoder.feed(content)
    if not decoder.complete:
        raise InternalError("the list of files was cut", operation="list directory")
    return records, decoder.truncated


def _entry(record: FileRecord, path: str) -> dict[str, object]:
    return {
        "name": shown(path.rstrip("/").rpartition("/")[2] or "/"),
        "path": shown(path),
        "type": _TYPE_NAMES.get(stat_bits.S_IFMT(record.mode), "file"),
        "size_bytes": record.size_bytes,
        "mode": stat_bits.S_IMODE(record.mode),
        "uid": record.uid,
        "gid": record.gid,
        "mtime": record.mtime_ns / 1e9,
        "target": None if record.target is None else shown(record.target),
    }


def shown(text: str) -> str:
    """A name as JSON can carry it."""
    # JSON cannot carry a name that is no UTF-8; such bytes are shown as U+FFFD.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
