"""A file operation that runs in a sandbox, from its start until init may forget it."""

from __future__ import annotations

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
from sandboxd.init_protocol import ExecRequest
from sandboxd.pipes import OutputPipe
from sandboxd.sandbox import LiveSandbox

MAX_PATH_BYTES = 4095
_MAX_ANSWER_BYTES = 32 << 20
_MAX_ERROR_BYTES = 64 + MAX_PATH_BYTES


def check_path(path: str) -> None:
    """`InvalidRequest` unless it may be put to init as a path."""
    if not path.startswith("/") or "\0" in path or len(path) > MAX_PATH_BYTES:
        raise InvalidRequest(
            "the path is refused",
            operation="file operation",
            object=path[:200],
            cause=f"it must be absolute, without NUL, and at most {MAX_PATH_BYTES} characters",
        )


@dataclass(frozen=True)
class FileTarget:
    """Which file of which sandbox, as which user."""

    sandbox: LiveSandbox
    path: str
    user: str

    def __post_init__(self) -> None:
        check_path(self.path)


class FileOperation:
    """One that runs: a short-lived child of init."""

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
    ) -> FileOperation:
        """Start what `build` makes of its id; `upload`: it reads what the client sends."""
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
            if len(content) > _MAX_ANSWER_BYTES:
                raise TooLarge(
                    "the answer is too large",
                    operation=self._operation,
                    object=self._target.path,
                    cause=f"more than {_MAX_ANSWER_BYTES} bytes; ask for less depth",
                )
        return bytes(content)

    async def send(self, body: AsyncIterator[bytes], max_bytes: int) -> None:
        """Hand `body` over, and the end mark after it, as fast as the operation reads."""
        stdin = self.running.stdin
        assert stdin is not None
        written = 0
        try:
            async for chunk in body:
                written += len(chunk)
                if written > max_bytes:
                    raise TooLarge(
                        "the upload is too large",
                        operation=self._operation,
                        object=self._target.path,
                        cause=f"more than {max_bytes} bytes (max_upload_bytes)",
                    )
                for start in range(0, len(chunk), init_protocol.MAX_UPLOAD_FRAME):
                    piece = chunk[start : start + init_protocol.MAX_UPLOAD_FRAME]
                    await stdin.write(init_protocol.encode_upload_frame(piece))
            await stdin.write(init_protocol.UPLOAD_END)
        except BrokenPipeError:
            pass  # it gave up reading: its own error says why

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
            where = init_protocol.decode_failed_path(bytes(self._error))
            return error_from_errno(
                number,
                f"it failed at {where!r}" if where else "it failed",
                operation=self._operation,
                object=self._target.path,
            )
        return InternalError(
            "the file operation died",
            operation=self._operation,
            object=self._target.path,
            cause=f"exit code {exited.exit_code}, signal {exited.signal}",
        )


async def run(target: FileTarget, operation: str, build: Callable[[int], ExecRequest]) -> bytes:
    """Run one to its end: what it wrote."""
    running = await FileOperation.start(target, operation, build)
    try:
        return await running.finish()
    finally:
        running.end()


async def download(
    target: FileTarget, operation: str, build: Callable[[int], ExecRequest]
) -> AsyncGenerator[bytes, None]:
    """Run one, and give what it writes as it comes. Errors come with the first chunk, or later."""
    running = await FileOperation.start(target, operation, build)
    try:
        async for chunk in running.chunks():
            yield chunk
    finally:
        running.end()


async def upload(
    target: FileTarget,
    operation: str,
    build: Callable[[int], ExecRequest],
    body: AsyncIterator[bytes],
    max_bytes: int,
) -> None:
    """Run one that reads all of `body`, to its end."""
    running = await FileOperation.start(target, operation, build, upload=True)
    try:
        await running.send(body, max_bytes)
        await running.finish()
    finally:
        running.end()
