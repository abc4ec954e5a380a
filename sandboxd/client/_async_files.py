"""Files of a sandbox, for asyncio. Every operation has the rights of the sandbox's own user."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Literal, overload

from sandboxd.client import _calls, _file_calls
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._call import Call
from sandboxd.client._data import AsyncData, async_pieces, small
from sandboxd.client._lines import LineDecoder
from sandboxd.client.types import FileEntry, FileListing, WatchEvent
from sandboxd.errors import NotFound

# Inside the classes below, `list` is a method.
Entries = list[FileEntry]


class AsyncFiles:
    """Reads and changes the file tree of one sandbox. Content is bytes, and exact."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    @overload
    async def read(
        self, path: str, format: Literal["text"] = "text", *, user: str | None = None
    ) -> str: ...

    @overload
    async def read(
        self, path: str, format: Literal["bytes"], *, user: str | None = None
    ) -> bytes: ...

    @overload
    async def read(
        self, path: str, format: Literal["stream"], *, user: str | None = None
    ) -> AsyncIterator[bytes]: ...

    async def read(
        self,
        path: str,
        format: Literal["text", "bytes", "stream"] = "text",
        *,
        user: str | None = None,
    ) -> str | bytes | AsyncIterator[bytes]:
        """The content as UTF-8 text (an error if it is not), as bytes, or in chunks.

        A stream holds a connection until it is exhausted or closed.
        """
        call = _file_calls.read_file(self._id, path, user)
        if format == "stream":
            return self._stream(call)
        content = await self._transport.call(call)
        return content.decode() if format == "text" else content

    async def write(
        self,
        path: str,
        data: AsyncData,
        *,
        user: str | None = None,
        mode: int | None = None,
        owner: str | None = None,
    ) -> None:
        """Replaces the file in one step: readers see the old content or the whole new one. Without
        `mode` and `owner` a file that is there keeps its own. `owner`: see `chown`."""
        content = small(data)
        call = _file_calls.write_file(self._id, path, user, mode, owner, content or b"")
        if content is not None:
            await self._transport.call(call)
        else:
            await self._transport.call(call, content=async_pieces(data), timeout_s=None)

    async def list(self, path: str, *, depth: int = 1, user: str | None = None) -> Entries:
        """Entries below a directory; see `listing` for the word on truncation."""
        return [*(await self.listing(path, depth=depth, user=user)).entries]

    async def listing(self, path: str, *, depth: int = 1, user: str | None = None) -> FileListing:
        return await self._transport.call(_file_calls.list_files(self._id, path, user, depth))

    async def stat(self, path: str, *, follow: bool = False, user: str | None = None) -> FileEntry:
        """What is there; of a symbolic link the link itself, or with `follow` what it leads to."""
        return await self._transport.call(
            _file_calls.stat_file(self._id, path, user, follow=follow)
        )

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except NotFound:
            # The same code says that the sandbox is gone, which is no answer about a file.
            await self._transport.call(_calls.get_sandbox(self._id))
            return False
        return True

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        await self._transport.call(
            _file_calls.remove_file(self._id, path, user, recursive=recursive)
        )

    async def make_dir(
        self, path: str, *, mode: int = 0o755, parents: bool = True, user: str | None = None
    ) -> None:
        await self._transport.call(
            _file_calls.make_directory(self._id, path, user, mode, parents=parents)
        )

    async def rename(
        self, path: str, new_path: str, *, replace: bool = True, user: str | None = None
    ) -> None:
        """On the same filesystem. Without `replace`, `Conflict` when the new name is taken."""
        await self._transport.call(
            _file_calls.rename_file(self._id, path, new_path, user, replace=replace)
        )

    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        await self._transport.call(
            _file_calls.set_attributes(self._id, path, user, mode=mode, owner=None)
        )

    async def chown(self, path: str, owner: str, *, user: str | None = None) -> None:
        """`owner`: a user of the sandbox by name or number, which stands for its own group too,
        `USER:GROUP`, or `:GROUP`."""
        await self._transport.call(
            _file_calls.set_attributes(self._id, path, user, mode=None, owner=owner)
        )

    async def read_dir(self, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        """A directory and all below it as a tar archive, in chunks. A stream holds a connection
        until it is exhausted or closed."""
        return self._stream(_file_calls.read_directory(self._id, path, user))

    async def write_dir(
        self, path: str, tar: AsyncData, *, owners: bool = False, user: str | None = None
    ) -> None:
        """Unpacks a tar archive below a directory, which is made if it is not there. With `owners`
        they are as the archive says (for the sandbox's root), else all belongs to the user. What
        was unpacked before an error stays."""
        call = _file_calls.write_directory(self._id, path, user, owners=owners)
        await self._transport.call(call, content=async_pieces(tar), timeout_s=None)

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Within the block, what happens in a directory: all that happens once it is entered. The
        events end when the directory is removed.

            async with sandbox.files.watch("/srv") as events:
                async for event in events:
                    print(event.type, event.path)
        """
        call = _file_calls.watch_directory(self._id, path, user, recursive=recursive)
        async with self._transport.stream(call, timeout_s=None) as chunks:
            yield _watch_events(chunks)

    async def _stream(self, call: Call[bytes]) -> AsyncIterator[bytes]:
        async with self._transport.stream(call) as chunks:
            async for chunk in chunks:
                yield chunk


async def _watch_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent]:
    decoder = LineDecoder()
    async for chunk in chunks:
        for value in decoder.feed(chunk):
            yield WatchEvent.from_json(value)
