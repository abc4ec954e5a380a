"""The pool keeper as a `PoolStore`.

The header of an entry is a file of its own, the first, so that the keeper knows nothing but names
and descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandboxd.errors import (
    Conflict,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    VenusError,
    errno_text,
)
from sandboxd.keeper.connection import TIMEOUT_S, Connection
from sandboxd.keeper.start import Found, connect
from sandboxd.keeper.store import Held, Taken
from sandboxd.keeper.wire import (
    BATCH,
    KeeperState,
    Kind,
    WireError,
    decode_page,
    decode_state,
    is_name,
)

IDLE_S = 60.0
"""How long a keeper that holds nothing waits for the next daemon."""
MAX_HEADER_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ERRNO_CLASSES: dict[int, type[VenusError]] = {
    errno.EBADF: InvalidRequest,
    errno.EEXIST: Conflict,
    errno.EINVAL: InvalidRequest,
    errno.ENOENT: NotFound,
    errno.E2BIG: LimitExceeded,
    errno.EMFILE: LimitExceeded,
    errno.ENOMEM: LimitExceeded,
    errno.ENOSPC: LimitExceeded,
}


class KeeperGone(InternalError):
    """The keeper died, and forgot all that it held: `open`, then hold everything again."""


class PoolKeeper:
    """Blocking; every method may be called from any thread, and one waits for the other.

    Lock: `_lock` is a leaf and guards the connection, on which each request follows the answer to
    the one before.
    """

    def __init__(self, directory: Path, idle_s: float = IDLE_S) -> None:
        self._directory = directory
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def open(self) -> Found:
        """Connect to the keeper of the directory, or start one."""
        with self._lock, self._errors("connect to pool keeper", str(self._directory)):
            self._drop()
            self._connection, found = connect(self._directory, idle_s=self._idle_s)
            return found

    def close(self) -> None:
        """Leave; the keeper stays with what it holds."""
        with self._lock:
            self._drop()

    def end(self) -> None:
        """Let the keeper forget everything and end; returns when it and its files are gone."""
        with self._lock, self._errors("end pool keeper", str(self._directory)):
            self._connected().ask(Kind.END)
            self._connected().wait_until_closed()
            self._drop()

    def state(self) -> KeeperState:
        """What the keeper says about itself."""
        with self._lock, self._errors("ask pool keeper", str(self._directory)):
            return decode_state(self._connected().ask(Kind.HELLO))

    def hold(self, name: str, header: bytes, descriptors: Sequence[int]) -> None:
        """See `PoolStore`."""
        with self._lock, self._errors("hold template", name), _sealed(header) as header_fd:
            if not is_name(name):
                raise OSError(errno.EINVAL, "the name cannot be used")
            files = [header_fd, *descriptors]
            self._connected().ask(Kind.PUT, name, len(files))
            try:
                for at in range(0, len(files), BATCH):
                    self._connected().ask(Kind.PART, descriptors=files[at : at + BATCH])
                self._connected().ask(Kind.COMMIT)
            except OSError:
                # What was put and not committed goes with the connection that it came over.
                self._drop()
                with contextlib.suppress(OSError):
                    self._connection = Connection(self._directory)
                raise

    def take(self, name: str) -> Taken:
        """See `PoolStore`."""
        with self._lock, self._errors("take template", name), contextlib.ExitStack() as on_error:
            taken = Taken(b"")
            on_error.callback(taken.close)
            entry, count = 0, 1
            while len(taken.descriptors) < count:
                answer, received = self._connected().ask_for_files(
                    Kind.GET, name, len(taken.descriptors)
                )
                taken.descriptors.extend(received)
                if not received or entry not in (0, answer.value):
                    raise WireError("the entry changed while it was read")
                entry, count = answer.value, answer.count
            taken.header = _read_header(taken.descriptors[0])
            os.close(taken.descriptors.pop(0))
            on_error.pop_all()
            return taken

    def release(self, name: str) -> None:
        """See `PoolStore`."""
        with contextlib.suppress(NotFound), self._lock, self._errors("release template", name):
            self._connected().ask(Kind.REMOVE, name)

    def list(self) -> tuple[Held, ...]:
        """See `PoolStore`."""
        found: dict[str, Held] = {}
        with self._lock, self._errors("list templates", str(self._directory)):
            cursor = 0
            while True:
                answer = self._connected().ask(Kind.LIST, number=cursor)
                for name, files in decode_page(answer):
                    found[name] = Held(name, files - 1)
                if answer.value <= cursor:
                    return tuple(found.values())
                cursor = answer.value

    # -- under the lock ----------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._connection is None:
            raise ConnectionResetError(errno.ENOTCONN, "there is no connection")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _errors(self, operation: str, object: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            # The answer may still come, and would be taken for that to the next request.
            self._drop()
            raise OperationTimeout(
                f"the pool keeper gave no answer within {TIMEOUT_S:.0f} s",
                operation=operation,
                object=object,
            ) from error
        except (ConnectionError, WireError) as error:
            self._drop()
            raise KeeperGone(
                "the pool keeper is gone", operation=operation, object=object, cause=str(error)
            ) from error
        except OSError as error:
            number = error.errno or 0
            raise _ERRNO_CLASSES.get(number, InternalError)(
                "the pool keeper cannot do it",
                operation=operation,
                object=object,
                cause=errno_text(number),
            ) from error


@contextlib.contextmanager
def _sealed(header: bytes) -> Iterator[int]:
    if len(header) > MAX_HEADER_BYTES:
        raise OSError(errno.E2BIG, "the header is too long")
    descriptor = os.memfd_create("venus-header", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, header)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_header(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > MAX_HEADER_BYTES:
        raise WireError(f"a header of {size} bytes")
    return os.pread(descriptor, size, 0)
