"""Uploads as `multipart/form-data`, part by part as they come: no file is held whole. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sandboxd.errors import InvalidRequest

MAX_PARTS = 10_000
"""Of one upload."""
MAX_PART_HEADERS_BYTES = 16 << 10
"""Of one header of a part; a file name may be 4095 characters long."""


class PartEvent(enum.Enum):
    """What a piece of an upload means."""

    BEGIN = enum.auto()
    DATA = enum.auto()
    END = enum.auto()


@dataclass(frozen=True)
class Part:
    """The begin of a part, some of its content, or its end."""

    event: PartEvent
    field: str = ""
    file_name: str | None = None
    data: bytes = b""


class MultipartDecoder:
    """Feeds on the body; `InvalidRequest` for one that is against the format or its bounds."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise _refused("the content type is not multipart/form-data with a boundary")
        self._events: list[Part] = []
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._parts = 0
        self.complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": lambda: self._events.append(Part(PartEvent.END)),
                    "on_end": self._on_end,
                },
                max_header_size=MAX_PART_HEADERS_BYTES,
            )
        except FormParserError as error:
            raise _refused(str(error)) from None

    def feed(self, data: bytes) -> Iterator[Part]:
        """What has come with these bytes."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _refused(str(error)) from None
        events, self._events = self._events, []
        yield from events

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _refused(f"more than {MAX_PARTS} parts")
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _on_header_end(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        name.clear()
        value.clear()

    def _on_headers_finished(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"")
        _, options = parse_options_header(disposition)
        file_name = options.get(b"filename")
        self._events.append(
            Part(
                PartEvent.BEGIN,
                field=options.get(b"name", b"").decode("utf-8", "surrogateescape"),
                file_name=(
                    None if file_name is None else file_name.decode("utf-8", "surrogateescape")
                ),
            )
        )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(Part(PartEvent.DATA, data=data[start:end]))

    def _on_end(self) -> None:
        self.complete = True


def _refused(cause: str) -> InvalidRequest:
    return InvalidRequest("the upload is refused", operation="write file", cause=cause)
