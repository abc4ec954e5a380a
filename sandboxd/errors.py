"""The closed table of errors: code ↔ HTTP status ↔ exception class.

Every error that crosses a process boundary is one of these classes, and carries what was being
done (`operation`), to what (`object`), and why it failed (`cause`). The daemon and the client
share the table; nothing is ever pickled or imported by name. Standard library only, because the
client imports this module on machines where the daemon is not installed.
"""

from __future__ import annotations

import errno as errno_names
import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar


class VenusError(Exception):
    """Root of all errors of this project; raised as one of its subclasses."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        object: str = "",
        cause: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.object = object
        self.cause = cause

    def __str__(self) -> str:
        where = " ".join(part for part in (self.operation, self.object) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text}: {self.cause}" if self.cause else text

    def to_json(self) -> dict[str, dict[str, str]]:
        """The body of an HTTP error answer, and of an ERROR frame."""
        return {
            "error": {
                "code": self.code,
                "message": _encodable(self.message),
                "operation": _encodable(self.operation),
                "object": _encodable(self.object),
                "cause": _encodable(self.cause),
            }
        }


def _encodable(text: str) -> str:
    """It may quote a request, in which JSON can put halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode()


class InvalidRequest(VenusError):
    """The request itself is wrong; sending it again cannot help."""

    code = "invalid_request"
    http_status = 400


class Unauthorized(VenusError):
    """The peer may not do this."""

    code = "unauthorized"
    http_status = 403


class NotFound(VenusError):
    """No such sandbox, exec, file or route (or not the peer's own)."""

    code = "not_found"
    http_status = 404


class ImageNotFound(NotFound):
    """The named image is not in the store."""

    code = "image_not_found"


class Conflict(VenusError):
    """The object exists already, is in use, or is in the wrong state."""

    code = "conflict"
    http_status = 409


class SandboxGone(VenusError):
    """The sandbox ended (killed, out of memory, expired) before or during the request."""

    code = "sandbox_gone"
    http_status = 410


class TooLarge(VenusError):
    """A body or a field is above its bound."""

    code = "too_large"
    http_status = 413


class ExecFailed(VenusError):
    """A command could not be started; says at which step and with which errno."""

    code = "exec_failed"
    http_status = 422


class SnapshotRefused(VenusError):
    """The sandbox holds state that a snapshot cannot; says which process, object and reason."""

    code = "snapshot_refused"
    http_status = 422


class BuildFailed(VenusError):
    """A step of a recipe failed; says which, and the end of what it wrote."""

    code = "build_failed"
    http_status = 422


class ForkFailed(VenusError):
    """The processes of a template could not be rebuilt; says which step, on what and why."""

    code = "fork_failed"
    http_status = 422


class LimitExceeded(VenusError):
    """A bound on the number of concurrent things was reached; later it may work."""

    code = "limit_exceeded"
    http_status = 429


class InternalError(VenusError):
    """A fault of the daemon or of the machine."""

    code = "internal"
    http_status = 500


class Unsupported(VenusError):
    """This machine, or this version, cannot do it."""

    code = "unsupported"
    http_status = 501


class Unreachable(VenusError):
    """Another machine that is needed, or a program in a sandbox, cannot be reached, or does not
    answer as it should."""

    code = "unreachable"
    http_status = 502


class OperationTimeout(VenusError):
    """The operation took longer than it may."""

    code = "timeout"
    http_status = 504


class StorageFull(VenusError):
    """The sandbox's disk limit or the storage of the node is used up."""

    code = "storage_full"
    http_status = 507


ERROR_CLASSES: Mapping[str, type[VenusError]] = {
    error_class.code: error_class
    for error_class in (
        InvalidRequest,
        Unauthorized,
        NotFound,
        ImageNotFound,
        Conflict,
        SandboxGone,
        TooLarge,
        ExecFailed,
        SnapshotRefused,
        BuildFailed,
        ForkFailed,
        LimitExceeded,
        InternalError,
        Unsupported,
        Unreachable,
        OperationTimeout,
        StorageFull,
    )
}


def error_from_json(
    body: Any, *, fallback: str = "the answer is not an error of sandboxd"
) -> VenusError:
    """The exception that an error answer stands for.

    An unknown code, or a body of another shape, becomes an `InternalError`: the peer chooses
    among the classes above and nothing else.
    """
    fields = body.get("error") if isinstance(body, dict) else None
    if not isinstance(fields, dict):
        return InternalError(fallback, cause=repr(body)[:200])
    error_class = ERROR_CLASSES.get(str(fields.get("code")), InternalError)
    return error_class(
        str(fields.get("message", "")),
        operation=str(fields.get("operation", "")),
        object=str(fields.get("object", "")),
        cause=str(fields.get("cause", "")),
    )


def errno_text(number: int) -> str:
    """`ENOENT: No such file or directory`."""
    return f"{errno_names.errorcode.get(number, f'errno {number}')}: {os.strerror(number)}"


def errno_of(error: VenusError) -> int | None:
    """The number that the kernel said, as the error's cause tells it (see `errno_text`); None for
    an error that did not come from the kernel."""
    named = re.search(r"\b(E[A-Z0-9]+): ", error.cause)
    return getattr(errno_names, named[1], None) if named else None


_ERRNO_CLASSES: Mapping[int, type[VenusError]] = {
    errno_names.ENOENT: NotFound,
    errno_names.ESRCH: NotFound,
    errno_names.ENOTDIR: InvalidRequest,
    errno_names.EISDIR: InvalidRequest,
    errno_names.EINVAL: InvalidRequest,
    errno_names.ELOOP: InvalidRequest,
    errno_names.ENAMETOOLONG: InvalidRequest,
    errno_names.EXDEV: InvalidRequest,
    errno_names.EBADMSG: InvalidRequest,  # an archive that is none
    # What special files say to whoever takes them for ordinary ones.
    errno_names.ENXIO: InvalidRequest,
    errno_names.ENODEV: InvalidRequest,
    errno_names.EOPNOTSUPP: InvalidRequest,
    errno_names.EACCES: Unauthorized,
    errno_names.EPERM: Unauthorized,
    errno_names.EROFS: Unauthorized,
    errno_names.EEXIST: Conflict,
    errno_names.ENOTEMPTY: Conflict,
    errno_names.EBUSY: Conflict,
    errno_names.ETXTBSY: Conflict,
    errno_names.EFBIG: TooLarge,
    errno_names.E2BIG: TooLarge,
    errno_names.EMFILE: LimitExceeded,
    errno_names.ENFILE: LimitExceeded,
    errno_names.EAGAIN: LimitExceeded,
    errno_names.ENOMEM: LimitExceeded,
    errno_names.ENOSPC: StorageFull,
    errno_names.EDQUOT: StorageFull,
    errno_names.ETIMEDOUT: OperationTimeout,
}


def error_from_errno(
    number: int,
    message: str,
    *,
    operation: str,
    object: str,
) -> VenusError:
    """Translate what the kernel said about an object that the *caller* named."""
    error_class = _ERRNO_CLASSES.get(number, InternalError)
    return error_class(message, operation=operation, object=object, cause=errno_text(number))
