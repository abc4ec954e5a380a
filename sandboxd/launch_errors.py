"""What the host says while a sandbox is made or removed, as this project's errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from sandboxd import _native
from sandboxd.errors import (
    InternalError,
    LimitExceeded,
    SandboxGone,
    StorageFull,
    VenusError,
    errno_text,
)
from sandboxd.init_protocol import MakeDirectory, SetupOp, Symlink, UnshareCgroup, WriteFile
from sandboxd.storage.volumes import storage_error

_SCARCE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE})


# Of the other calls these say that a bound of the kernel is reached.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRITES = (MakeDirectory, Symlink, WriteFile)


def not_adoptable(sandbox_id: str, cause: str) -> SandboxGone:
    """The answer to an adoption that does not find what its record names."""
    return SandboxGone(
        "the sandbox is not there", operation="adopt sandbox", object=sandbox_id, cause=cause
    )


@contextlib.contextmanager
def kernel_errors(operation: str, object: str) -> Iterator[None]:
    """The host's refusals as this project's errors; the path is in the cause."""
    try:
        yield
    except OSError as error:
        translated = storage_error(error, operation, object)
        if error.filename is not None:
            translated.cause += f" ({error.filename})"
        raise translated from error


def spawn_error(error: _native.NativeError, sandbox_id: str, ops: list[SetupOp]) -> VenusError:
    """What a failed spawn means; names the setup step that init could not do."""
    index = error.op_index
    op = ops[index] if index is not None and 0 <= index < len(ops) else None
    step = f"{error.operation} {error.object}".strip() if op is None else f"setup step {op}"
    error_class: type[VenusError] = LimitExceeded if error.errno in _SCARCE else InternalError
    cause = f"{step}: {errno_text(error.errno)}"
    if error.errno in _FULL and isinstance(op, _WRITES):
        error_class = StorageFull
    makes_namespaces = error.operation == "clone" if op is None else isinstance(op, UnshareCgroup)
    if error.errno == errno.ENOSPC and makes_namespaces:
        cause += " (a limit on namespaces: user.max_*_namespaces)"
    return error_class(
        "the sandbox could not be set up",
        operation="create sandbox",
        object=sandbox_id,
        cause=cause,
    )
