"""`AsyncLease`, for asyncio. The same surface as the synchronous one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from sandboxd.client import _lease_calls
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._http import Socket
from sandboxd.client.types import LeaseInfo
from sandboxd.errors import NotFound, VenusError


class AsyncLease:
    """What is made under it goes with it: when it is released, or when this process, and with it
    the task that renews it, is gone for `ttl` seconds.

        async with await AsyncLease.create() as lease:
            sandbox = await AsyncSandbox.create(lease=lease)

    A renewal that fails is tried again, as a daemon that restarts keeps its leases. `lost` says
    that it has ended all the same. The event loop must not be held up for as long as `ttl`.
    """

    def __init__(self, transport: AsyncTransport, info: LeaseInfo) -> None:
        self._transport = transport
        self._info = info
        self._lost: VenusError | None = None
        self._renewals = asyncio.create_task(self._keep(), name=f"renew {info.id}")

    @classmethod
    async def create(
        cls,
        ttl: float = 60.0,
        *,
        metadata: Mapping[str, str] | None = None,
        socket: Socket = None,
    ) -> Self:
        """`ttl` in seconds: how long it lasts after the last renewal."""
        transport = AsyncTransport(socket)
        try:
            return cls(transport, await transport.call(_lease_calls.create_lease(ttl, metadata)))
        except BaseException:
            await transport.close()
            raise

    @property
    def lease_id(self) -> str:
        return self._info.id

    @property
    def info(self) -> LeaseInfo:
        """As of the last renewal."""
        return self._info

    @property
    def lost(self) -> VenusError | None:
        """Why it has ended without having been released; None as long as it has not."""
        return self._lost

    async def renew(self) -> None:
        """Now; it is renewed without that, too."""
        self._info = await self._transport.call(_lease_calls.renew_lease(self.lease_id))

    async def release(self) -> bool:
        """Ends it; what was made under it is gone then. False when it had ended already."""
        await self._stop()
        try:
            await self._transport.call(_lease_calls.release_lease(self.lease_id), timeout_s=None)
        except NotFound:
            return False
        return True

    async def close(self) -> None:
        """It is renewed no more, and ends in its time."""
        await self._stop()
        await self._transport.close()

    async def _stop(self) -> None:
        self._renewals.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._renewals

    async def _keep(self) -> None:
        wait_s = self._info.ttl_s / _lease_calls.RENEWALS
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.renew()
            except NotFound as error:
                self._lost = error
                return
            except VenusError:
                wait_s = self._info.ttl_s / _lease_calls.RETRIES
            else:
                wait_s = self._info.ttl_s / _lease_calls.RENEWALS

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        finally:
            await self.close()
