"""Imports, pulls and builds of images: some at once, some waiting, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sandboxd.errors import LimitExceeded
from sandboxd.images.store import Image


class ImportQueue:
    """Threads of their own: what takes minutes must not stand before creates."""

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=max_concurrent, thread_name_prefix="images")
        self._max = max_concurrent + max_queued
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, name: str, call: Callable[[], Image]) -> Future[Image]:
        """`LimitExceeded` when too many wait."""
        with self._lock:
            if self._count >= self._max:
                raise LimitExceeded(
                    "too many imports wait",
                    operation="import image",
                    object=name,
                    cause=f"max_concurrent_imports and max_queued_imports allow {self._max}",
                )
            self._count += 1
        future = self._pool.submit(call)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Future[Image]) -> None:
        with self._lock:
            self._count -= 1

    def close(self) -> None:
        """Those that wait never start; those that run are waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)
