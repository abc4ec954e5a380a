"""Terminals of commands, as the daemon holds them: by their master."""

from __future__ import annotations

import fcntl
import struct
import termios
from dataclasses import dataclass

MAX_ROWS = MAX_COLUMNS = 4096
_SIZE = struct.Struct("HHHH")


@dataclass(frozen=True)
class TerminalSize:
    """In characters; each at most 4096."""

    rows: int
    columns: int


def set_size(master: int, size: TerminalSize) -> None:
    """The programs in the foreground get SIGWINCH if it is another one."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, _SIZE.pack(size.rows, size.columns, 0, 0))
