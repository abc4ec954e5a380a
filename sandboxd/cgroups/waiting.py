"""Waiting for what the kernel does with a group: by its events where it has some."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Iterator

from sandboxd.errors import InternalError, errno_text

EMPTY_TIMEOUT_S = 10.0
FREEZE_TIMEOUT_S = 5.0


def patiently(timeout_s: float) -> Iterator[None]:
    """Once at once, then again and again at growing distance until the time is over.

    For what the kernel has no event for. The first looks are close together, because the usual
    case needs none or one.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0002
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def wait_event(group: str, event: str, timeout_s: float) -> bool:
    """Wait until the `cgroup.events` of a version 2 group say so (`populated 0`); the kernel
    notifies. False when the time is over; a group that is gone is one that waits for nothing."""
    wanted = event.encode()
    try:
        events_fd = os.open(f"{group}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        poll = select.poll()
        poll.register(events_fd, select.POLLPRI)
        deadline = time.monotonic() + timeout_s
        while wanted not in os.pread(events_fd, 256, 0).splitlines():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            poll.poll(left_s * 1000)
    except OSError as error:
        if error.errno != errno.ENODEV:  # removed meanwhile
            raise
    finally:
        os.close(events_fd)
    return True


def remove_when_empty(group: str) -> None:
    """rmdir, patient with processes that are dead but not yet out of the group."""
    for _ in patiently(EMPTY_TIMEOUT_S):
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(group)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise InternalError(
        "the group cannot be removed",
        operation="destroy groups",
        object=group,
        cause=errno_text(errno.EBUSY),
    )
