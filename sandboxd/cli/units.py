"""Sizes and durations as people write and read them."""

from __future__ import annotations

import re
import signal
from typing import Any

import click

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h|d)?", re.IGNORECASE)
_DURATION_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes of `512M`, `1.5GiB`, `4096`; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for instance 512M or 2G")
    size = int(float(match["number"]) * _SIZE_UNITS[match["unit"].upper()])
    if size <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return size


def parse_duration(text: str) -> float:
    """Seconds of `90`, `90s`, `5m`, `1.5h`, `2d`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write for instance 90s, 5m or 2h")
    seconds = float(match["number"]) * _DURATION_UNITS[(match["unit"] or "s").lower()]
    if seconds <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return seconds


def parse_signal(text: str) -> int:
    """The number of `TERM`, `SIGTERM` or `15`."""
    name = text.strip().upper()
    if name.isdecimal() and 1 <= int(name) <= 64:
        return int(name)
    try:
        return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise ValueError(f"{text!r} is no signal; write for instance TERM or 15") from None


def show_size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in ("B", "K", "M", "G"):
        if size < 1024:
            return f"{size:.0f}{unit}" if size >= 10 or size == int(size) else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def show_duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Parsed("size", parse_size)
DURATION = _Parsed("duration", parse_duration)
SIGNAL = _Parsed("signal", parse_signal)


def parse_pairs(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dictionary."""
    result = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair}: expected NAME=VALUE")
        result[name] = value
    return result


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Left-aligned columns, two spaces apart."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
