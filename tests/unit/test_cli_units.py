"""Sizes, durations and pairs as people write them."""

from __future__ import annotations

import click
import pytest

from sandboxd.cli.units import (
    parse_duration,
    parse_pairs,
    parse_size,
    show_duration,
    show_size,
    table,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("2 kb", 2048), ("1t", 1 << 40)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "12Q", "1e3", "0", "nan", "5 M B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|above zero"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("2D", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "0", "5w", "1:30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|above zero"):
        parse_duration(text)


def test_pairs() -> None:
    assert parse_pairs(("A=1", "B=x=y", "C="), "--env") == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(click.UsageError, match="--env A"):
        parse_pairs(("A",), "--env")


def test_shown_values() -> None:
    assert [show_size(n) for n in (None, 0, 1023, 1536, 512 << 20)] == [
        "-", "0B", "1023B", "1.5K", "512M",
    ]  # fmt: skip
    assert [show_duration(s) for s in (None, 5, 119, 120, 7200)] == ["-", "5s", "119s", "2m", "2h"]
    assert table(("A", "B"), [("xx", "y")]) == "A   B\nxx  y"
