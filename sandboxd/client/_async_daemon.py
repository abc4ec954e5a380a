"""`AsyncDaemon`, for asyncio. The same surface as the synchronous one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from sandboxd.client import _calls, _image_calls, _lease_calls, _template_calls
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._call import Call
from sandboxd.client._calls import Page
from sandboxd.client._data import AsyncData, async_pieces
from sandboxd.client._http import Socket
from sandboxd.client._lines import LineDecoder, ProgressLines
from sandboxd.client.types import (
    BuildInfo,
    DaemonInfo,
    ImageInfo,
    LeaseInfo,
    SandboxEvent,
    SandboxInfo,
    SandboxStats,
)

T = TypeVar("T")


class AsyncDaemon:
    """What concerns the daemon as a whole: its figures, its sandboxes, its images."""

    def __init__(self, socket: Socket = None) -> None:
        self._transport = AsyncTransport(socket)

    @property
    def socket(self) -> str:
        return self._transport.socket

    async def info(self) -> DaemonInfo:
        return await self._transport.call(_calls.daemon_info())

    async def check_health(self) -> None:
        """Returns when the daemon answers, else raises."""
        await self._transport.call(_calls.health(), timeout_s=10.0)

    async def list_sandboxes(
        self, metadata: Mapping[str, str] | None = None, *, hostname: str | None = None
    ) -> list[SandboxInfo]:
        """Those that have all these labels and this host name, the oldest first."""
        return await self._whole(lambda after: _calls.list_sandboxes(metadata, hostname, after))

    async def stats(
        self, metadata: Mapping[str, str] | None = None, *, lease: str | None = None
    ) -> list[SandboxStats]:
        """What those use now that have all these labels and are under this lease, the oldest first;
        a request for each thousand."""
        return await self._whole(lambda after: _calls.list_stats(metadata, lease, after))

    async def _whole(self, page_after: Callable[[str | None], Call[Page[T]]]) -> list[T]:
        """The entries of all pages."""
        found: list[T] = []
        after: str | None = None
        while True:
            page = await self._transport.call(page_after(after))
            found += page.entries
            after = page.next
            if after is None:
                return found

    @contextlib.asynccontextmanager
    async def events(
        self,
        *,
        after: int | None = None,
        sandbox_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> AsyncIterator[AsyncIterator[SandboxEvent]]:
        """Within the block, what happens to the caller's sandboxes (root: to all), or to one, or to
        those with all these labels: from now on, or from the one behind number `after` on. Without
        `wait` they end with those that there are."""
        call = _calls.follow_events(after, sandbox_id, metadata, wait=wait)
        async with self._transport.stream(call, timeout_s=None) as chunks:
            yield _sandbox_events(chunks)

    async def list_leases(self) -> list[LeaseInfo]:
        return await self._transport.call(_lease_calls.list_leases())

    async def release_lease(self, lease_id: str) -> None:
        """Ends it, whoever renews it; what was made under it is gone then."""
        await self._transport.call(_lease_calls.release_lease(lease_id), timeout_s=None)

    async def list_images(self) -> list[ImageInfo]:
        return await self._transport.call(_image_calls.list_images())

    async def import_image_tar(self, name: str, tar: AsyncData) -> ImageInfo:
        """Sends the tar of a root filesystem, of an OCI layout or of `docker save`, in pieces. For
        root only."""
        return await self._transport.call(
            _image_calls.put_image(name), content=async_pieces(tar), timeout_s=None
        )

    async def import_image_directory(self, name: str, path: str | os.PathLike[str]) -> ImageInfo:
        """Copies a root filesystem, or an OCI layout, on the daemon's host. For root only."""
        absolute = os.path.abspath(path)  # noqa: ASYNC240
        return await self._transport.call(_image_calls.import_image(name, absolute), timeout_s=None)

    async def build_base_image(
        self, name: str, *, suite: str | None = None, packages: Sequence[str] | None = None
    ) -> AsyncIterator[str]:
        """Builds a Debian image with mmdebstrap; yields lines of progress. For root only."""
        async for line in self._progress(_image_calls.build_base(name, suite, packages)):
            yield line

    async def pull_image(
        self,
        reference: str,
        name: str | None = None,
        *,
        username: str | None = None,
        password: str | None = None,
        auth_file: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> AsyncIterator[str]:
        """Pulls an image from a registry; yields lines of progress. For root only.

        `name` is the image's here, by default the last part of the reference. `auth_file` lies on
        the daemon's host. `insecure`: over plain HTTP, or with any certificate. Closing the
        iterator gives the pull up.
        """
        file = None if auth_file is None else os.path.abspath(auth_file)  # noqa: ASYNC240
        name = name or _image_calls.image_name(reference)
        call = _image_calls.pull_image(name, reference, username, password, file, insecure)
        async for line in self._progress(call):
            yield line

    async def _progress(self, call: Call[None]) -> AsyncIterator[str]:
        progress = ProgressLines(call.operation, "image")
        async with self._transport.stream(call, timeout_s=None) as chunks:
            async for chunk in chunks:
                for line in progress.feed(chunk):
                    yield line
        progress.result()

    async def list_builds(self) -> list[BuildInfo]:
        """The caller's builds that run, and those that failed lately; root's: all."""
        return await self._transport.call(_template_calls.list_builds())

    async def get_build(self, build_id: str) -> BuildInfo:
        """One of them, with its log."""
        return await self._transport.call(_template_calls.get_build(build_id))

    async def prune_images(
        self, unused_for: float = 0.0, *, every: bool = False
    ) -> list[ImageInfo]:
        """Removes pulled images that nothing uses, and that nothing has used for so many seconds;
        `every`: also those that were not pulled. Returns what went. For root only."""
        return await self._transport.call(_image_calls.prune_images(unused_for, every))

    async def remove_image(self, name: str) -> None:
        await self._transport.call(_image_calls.remove_image(name))

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _sandbox_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[SandboxEvent]:
    decoder = LineDecoder()
    async for chunk in chunks:
        for value in decoder.feed(chunk):
            yield SandboxEvent.from_json(value)
