"""Progress on a terminal: permanent lines, and one live line below them that is drawn over.

Where the output is no terminal (a pipe, a CI log) there is no live line.
"""

import shutil
import time
from typing import TextIO

from venusrl.report.text import visible

_CLEAR_LINE = "\r\x1b[2K"
_REDRAW_EVERY_S = 0.2


class Terminal:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_tty = stream.isatty()
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._live = ""

    def note(self, text: str) -> None:
        """A line that stays, with the time since the start."""
        elapsed = int(time.monotonic() - self._started)
        clear = _CLEAR_LINE if self._live else ""
        self._stream.write(f"{clear}[{elapsed // 60:02d}:{elapsed % 60:02d}] {visible(text)}\n")
        if self._live:
            self._stream.write(self._live)
        self._stream.flush()

    def live(self, text: str) -> None:
        """Replace the live line; drawn a few times a second at most."""
        now = time.monotonic()
        if not self._is_tty or now - self._drawn_at < _REDRAW_EVERY_S:
            return
        self._drawn_at = now
        # A line that wraps could not be cleared again.
        self._live = visible(text)[: shutil.get_terminal_size().columns - 1]
        self._stream.write(_CLEAR_LINE + self._live)
        self._stream.flush()

    def end_live(self) -> None:
        if self._live:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._live = ""
