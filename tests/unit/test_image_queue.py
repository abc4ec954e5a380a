"""Imports: how many at once, and how many wait."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from sandboxd.errors import InternalError, LimitExceeded
from sandboxd.images import Image
from sandboxd.images.queue import ImportQueue

IMAGE = Image("name", "source", None, 0, 0, 0.0)


def test_more_than_may_wait_are_refused() -> None:
    queue = ImportQueue(1, 1)
    running, go_on = threading.Event(), threading.Event()

    def slow() -> Image:
        running.set()
        go_on.wait(60)
        return IMAGE

    first = queue.submit("first", slow)
    assert running.wait(60)
    second = queue.submit("second", lambda: IMAGE)
    with pytest.raises(LimitExceeded, match="allow 2"):
        queue.submit("third", lambda: IMAGE)
    go_on.set()
    assert first.result(60) is second.result(60) is IMAGE
    # A place is free as soon as an import has ended, also badly.

    def fail() -> Image:
        raise InternalError("no")

    for _ in range(3):
        with pytest.raises(InternalError):
            queue.submit("bad", fail).result(60)
        queue.submit("good", lambda: IMAGE).result(60)
    queue.close()


def test_those_that_wait_when_it_closes_never_start() -> None:
    queue = ImportQueue(1, 1)
    running, go_on = threading.Event(), threading.Event()

    def slow() -> Image:
        running.set()
        go_on.wait(60)
        return IMAGE

    first = queue.submit("first", slow)
    assert running.wait(60)
    second = queue.submit("second", slow)
    closing = threading.Thread(target=queue.close)
    closing.start()
    with pytest.raises(CancelledError):
        second.result(60)
    go_on.set()
    closing.join(60)
    assert first.result(60) is IMAGE
