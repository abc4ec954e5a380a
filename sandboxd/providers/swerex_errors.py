"""Errors as SWE-ReX's client raises them again: by the name of a class that it has.

The names are from this closed table; a message is all that goes with one.
"""

from __future__ import annotations

from typing import Any

from sandboxd.client import DaemonUnavailable, VenusError
from sandboxd.errors import errno_of

STATUS = 511
"""Of an answer that carries one."""

_OF_PYTHON = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    UnicodeDecodeError,
    LookupError,
    ValueError,
    OSError,
)


class SwerexError(Exception):
    """`kind` is a class of `swerex.exceptions`."""

    def __init__(self, kind: str, message: str, **extra_info: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.extra_info = extra_info


def transfer(error: Exception) -> dict[str, dict[str, Any]]:
    """The body of the answer."""
    extra: dict[str, str] = {}
    if isinstance(error, SwerexError):
        path, extra = f"swerex.exceptions.{error.kind}", error.extra_info
    elif isinstance(error, DaemonUnavailable):
        path = "builtins.ConnectionError"
    elif isinstance(error, VenusError) and (number := errno_of(error)) is not None:
        path = _python_class(OSError(number, ""))
    elif isinstance(error, VenusError):
        path = "swerex.exceptions.SwerexException"
    else:
        path = _python_class(error)
    return {
        "swerexception": {
            "message": str(error),
            "class_path": path,
            "traceback": "",
            "extra_info": extra,
        }
    }


def _python_class(error: Exception) -> str:
    name = next((each.__name__ for each in _OF_PYTHON if isinstance(error, each)), "RuntimeError")
    return f"builtins.{name}"
