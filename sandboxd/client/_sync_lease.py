"""`Lease`, for threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from sandboxd.client import _lease_calls
from sandboxd.client._http import Socket
from sandboxd.client._sync_transport import SyncTransport
from sandboxd.client.types import LeaseInfo
from sandboxd.errors import NotFound, VenusError


class Lease:
    """What is made under it goes with it: when it is released, or when this process, and with it
    the thread that renews it, is gone for `ttl` seconds.

        with Lease.create() as lease:
            sandbox = Sandbox.create(lease=lease)

    A renewal that fails is tried again, as a daemon that restarts keeps its leases. `lost` says
    that it has ended all the same.
    """

    def __init__(self, transport: SyncTransport, info: LeaseInfo) -> None:
        self._transport = transport
        self._info = info
        self._lost: VenusError | None = None
        self._ended = threading.Event()
        self._renewals = threading.Thread(target=self._keep, name=f"renew {info.id}", daemon=True)
        self._renewals.start()

    @classmethod
    def create(
        cls,
        ttl: float = 60.0,
        *,
        metadata: Mapping[str, str] | None = None,
        socket: Socket = None,
    ) -> Self:
        """`ttl` in seconds: how long it lasts after the last renewal."""
        transport = SyncTransport(socket)
        try:
            return cls(transport, transport.call(_lease_calls.create_lease(ttl, metadata)))
        except BaseException:
            transport.close()
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

    def renew(self) -> None:
        """Now; it is renewed without that, too."""
        self._info = self._transport.call(_lease_calls.renew_lease(self.lease_id))

    def release(self) -> bool:
        """Ends it; what was made under it is gone then. False when it had ended already."""
        self._stop()
        try:
            self._transport.call(_lease_calls.release_lease(self.lease_id), timeout_s=None)
        except NotFound:
            return False
        return True

    def close(self) -> None:
        """It is renewed no more, and ends in its time."""
        self._stop()
        self._transport.close()

    def _stop(self) -> None:
        self._ended.set()
        if self._renewals is not threading.current_thread():
            self._renewals.join()

    def _keep(self) -> None:
        wait_s = self._info.ttl_s / _lease_calls.RENEWALS
        while not self._ended.wait(wait_s):
            try:
                self.renew()
            except NotFound as error:
                self._lost = error
                return
            except VenusError:
                wait_s = self._info.ttl_s / _lease_calls.RETRIES
            else:
                wait_s = self._info.ttl_s / _lease_calls.RENEWALS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        finally:
            self.close()
