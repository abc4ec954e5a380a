"""Files of a sandbox, by init's own operations: with the sandbox's rights, seen from its root.

The daemon never resolves a path that a sandbox controls; it moves bytes between the client and a
short-lived child of init. An upload becomes a file only with its end mark, which is sent only when
the client's body came whole.
"""

from __future__ import annotations

import asyncio
import json
import stat as stat_bits
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from sandboxd import init_protocol
from sandboxd.errors import (
    InternalError,
    InvalidRequest,
    OperationTimeout,
    TooLarge,
    VenusError,
    error_from_errno,
)
from sandboxd.exec_session import RunningExec, start_exec
from sandboxd.init_protocol import ExecRequest, FileRecord, RecordDecoder
from sandboxd.pipes import OutputPipe
from sandboxd.sandbox import LiveSandbox

# Whoever stalls (a FIFO without a writer, a client that does not read) is cut after this.
OPERATION_TIMEOUT_MS = 30_000
TRANSFER_TIMEOUT_MS = 3_600_000
MAX_LIST_DEPTH = 64
MAX_LIST_ENTRIES = 20_000
_MAX_LIST_BYTES = 32 << 20
_MAX_ERROR_BYTES = 64

_TYPE_NAMES = {
    stat_bits.S_IFREG: "file",
    stat_bits.S_IFDIR: "directory",
    stat_bits.S_IFLNK: "symlink",
    stat_bits.S_IFIFO: "fifo",
    stat_bits.S_IFSOCK: "socket",
    stat_bits.S_IFCHR: "char_device",
    stat_bits.S_IFBLK: "block_device",
}


@dataclass(frozen=True)
class FileTarget:
    """Which file of which sandbox, as which user."""

    sandbox: LiveSandbox
    path: str
    user: str

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or "\0" in self.path or len(self.path) > 4095:
            raise InvalidRequest(
                "the path is refused",
                operation="file operation",
                object=self.path[:200],
                cause="it must be absolute, without NUL, and at most 4095 characters",
            )


class _Operation:
    """One running file operation."""

    def __init__(self, target: FileTarget, running: RunningExec, operation: str) -> None:
        self._target = target
        self._operation = operation
        self.running = running
        self._error = bytearray()

    @classmethod
    async def start(
        cls,
        target: FileTarget,
        operation: str,
        build: Callable[[int], ExecRequest],
        *,
        upload: bool = False,
    ) -> _Operation:
        running = await start_exec(
            target.sandbox,
            build,
            operation=operation,
            stream_stdin=upload,
            keep_for_takeover=False,
        )
        return cls(target, running, operation)

    async def chunks(self) -> AsyncIterator[bytes]:
        """What it writes, to the end; raises what made it fail."""
        stdout, stderr = self.running.stdout, self.running.stderr
        assert stdout is not None and stderr is not None
        while True:
            over = self.running.over
            data = stdout.read_waiting(1 << 30) if over else stdout.read()
            self._collect_error(stderr, over=over)
            if data:
                yield data
            elif over:
                break
            else:
                await self.running.wait()
        self._check()

    def _collect_error(self, stderr: OutputPipe, *, over: bool) -> None:
        while data := (stderr.read_waiting(4096) if over else stderr.read()):
            self._error += data[: _MAX_ERROR_BYTES - len(self._error)]

    async def finish(self) -> bytes:
        """Collect what it writes, which is bounded; raises its error."""
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > _MAX_LIST_BYTES:
                raise TooLarge(
                    "the answer is too large",
                    operation=self._operation,
                    object=self._target.path,
                    cause=f"more than {_MAX_LIST_BYTES} bytes; ask for less depth",
                )
        return bytes(content)

    def end(self) -> None:
        """Whatever happened: nothing of it is left."""
        if self.running.stdin is None:
            self.running.kill_soon()
        # A writer is not killed: without the end mark it removes its temporary file itself.
        self.running.close_stdin()
        self.running.detach()

    def _check(self) -> None:
        exited = self.running.exited
        if exited is None:
            raise self._target.sandbox.gone_error(self._operation)
        if exited.exit_code == 0:
            return
        raise self._failure(exited)

    def _failure(self, exited: init_protocol.Exited) -> VenusError:
        number = init_protocol.decode_file_error(bytes(self._error))
        if exited.timed_out:
            return OperationTimeout(
                "the file operation took too long",
                operation=self._operation,
                object=self._target.path,
            )
        if number is not None:
            return error_from_errno(
                number, "it failed", operation=self._operation, object=self._target.path
            )
        return InternalError(
            "the file operation died",
            operation=self._operation,
            object=self._target.path,
            cause=f"exit code {exited.exit_code}, signal {exited.signal}",
        )


async def _run(target: FileTarget, operation: str, build: Callable[[int], ExecRequest]) -> bytes:
    running = await _Operation.start(target, operation, build)
    try:
        return await running.finish()
    finally:
        running.end()


async def read(target: FileTarget) -> AsyncGenerator[bytes, None]:
    """The file's bytes. Errors come with the first chunk, or, should it fail on the way, later."""
    operation = await _Operation.start(
        target,
        "read file",
        lambda exec_id: init_protocol.read_request(
            exec_id, target.path, user=target.user, timeout_ms=TRANSFER_TIMEOUT_MS
        ),
    )
    try:
        async for chunk in operation.chunks():
            yield chunk
    finally:
        operation.end()


async def write(
    target: FileTarget, mode: int, body: AsyncIterator[bytes], *, max_bytes: int
) -> None:
    """Create or replace the file with all of `body`, or leave everything as it was.

    `body` raises when the client's upload is cut.
    """
    operation = await _Operation.start(
        target,
        "write file",
        lambda exec_id: init_protocol.write_request(
            exec_id,
            target.path,
            user=target.user,
            mode=mode,
            parents=True,
            timeout_ms=TRANSFER_TIMEOUT_MS,
        ),
        upload=True,
    )
    stdin = operation.running.stdin
    assert stdin is not None
    try:
        try:
            written = 0
            async for chunk in body:
                written += len(chunk)
                if written > max_bytes:
                    raise TooLarge(
                        "the upload is too large",
                        operation="write file",
                        object=target.path,
                        cause=f"more than {max_bytes} bytes (max_upload_bytes)",
                    )
                for start in range(0, len(chunk), init_protocol.MAX_UPLOAD_FRAME):
                    piece = chunk[start : start + init_protocol.MAX_UPLOAD_FRAME]
                    await stdin.write(init_protocol.encode_upload_frame(piece))
            await stdin.write(init_protocol.UPLOAD_END)
        except BrokenPipeError:
            pass  # it gave up reading: its own error says why
        await operation.finish()
    finally:
        operation.end()


async def stat(target: FileTarget) -> dict[str, object]:
    """The entry itself, symbolic links not followed."""
    entries, _ = _records(
        await _run(
            target,
            "stat file",
            lambda exec_id: init_protocol.stat_request(
                exec_id, target.path, user=target.user, timeout_ms=OPERATION_TIMEOUT_MS
            ),
        )
    )
    if len(entries) != 1:
        raise InternalError("init gave no entry", operation="stat file", object=target.path)
    return _entry(entries[0], target.path)


async def list_directory(target: FileTarget, depth: int) -> bytes:
    """JSON of the entries below the directory, and of whether there are more than may be listed."""
    content = await _run(
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
    # A sandbox can make this some hundred milliseconds of work, in which others are served too.
    return await asyncio.to_thread(_listing, content, target.path.rstrip("/"))


def _listing(content: bytes, root: str) -> bytes:
    records, truncated = _records(content)
    entries = [_entry(record, f"{root}/{record.path}") for record in records]
    return json.dumps({"entries": entries, "truncated": truncated}).encode()


async def make_directory(target: FileTarget, mode: int, *, parents: bool) -> None:
    """As mkdir(1), with `-p` when `parents`."""
    await _run(
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
    await _run(
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


def _records(content: bytes) -> tuple[list[FileRecord], bool]:
    decoder = RecordDecoder()
    records = decoder.feed(content)
    if not decoder.complete:
        raise InternalError("the list of files was cut", operation="list directory")
    return records, decoder.truncated


def _entry(record: FileRecord, path: str) -> dict[str, object]:
    return {
        "name": _shown(path.rstrip("/").rpartition("/")[2] or "/"),
        "path": _shown(path),
        "type": _TYPE_NAMES.get(stat_bits.S_IFMT(record.mode), "file"),
        "size_bytes": record.size_bytes,
        "mode": stat_bits.S_IMODE(record.mode),
        "uid": record.uid,
        "gid": record.gid,
        "mtime": record.mtime_ns / 1e9,
        "target": None if record.target is None else _shown(record.target),
    }


def _shown(text: str) -> str:
    # JSON cannot carry a name that is no UTF-8; such bytes are shown as U+FFFD.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
