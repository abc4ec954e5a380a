"""Records as lines: of text for people, or of JSON. Pure.

A record is one line, whatever is in it: nobody who chooses a part of it can begin another one.
Tracebacks have lines of their own in text, each indented, which no record's first line is.
"""

from __future__ import annotations

import json
import logging
import re
import time

from sandboxd.logs.fields import fields_of

MAX_MESSAGE_CHARACTERS = 4096
MAX_TRACEBACK_CHARACTERS = 16384
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")


def escaped(text: str) -> str:
    """It stays on its line, and shows what it is: control characters, separators of lines, what
    turns the direction of text, and whatever else is not for the eye, by their numbers."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class _Lines(logging.Formatter):
    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = message[:MAX_MESSAGE_CHARACTERS] + "…"
        return message

    def _traceback(self, record: logging.LogRecord) -> str:
        """The end of it, which says what went wrong."""
        if not record.exc_info:
            return ""
        return self.formatException(record.exc_info)[-MAX_TRACEBACK_CHARACTERS:]


class TextFormatter(_Lines):
    """`TIME LEVEL LOGGER: MESSAGE NAME=VALUE…`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_shown(value)}" for name, value in fields_of(record).items())
        line = (
            f"{self.formatTime(record)} {record.levelname} {escaped(record.name)}: "
            f"{escaped(self._message(record))}{fields}"
        )
        traceback = self._traceback(record)
        below = (f"\n    {escaped(each)}" for each in traceback.split("\n") if traceback)
        return line + "".join(below)


class JsonFormatter(_Lines):
    """One object: `time`, `level`, `logger`, `message`, the fields, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            **fields_of(record),
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
        }
        if traceback := self._traceback(record):
            line["traceback"] = traceback
        return json.dumps(line)  # in ASCII, so that nothing in it needs a look


def _shown(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{_shown(name)}:{_shown(each)}" for name, each in value.items())
        return "{" + ",".join(pairs) + "}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else escaped(json.dumps(text, ensure_ascii=False))
