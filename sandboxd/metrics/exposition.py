"""Prometheus' text format, version 0.0.4: families of samples to bytes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sandboxd.metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True)
class Family:
    """One metric: its samples differ in the values of their labels."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class HistogramFamily:
    """One metric whose samples are histograms."""

    name: str
    help: str
    samples: tuple[tuple[Labels, Histogram], ...]


def encode(families: Iterable[Family | HistogramFamily]) -> bytes:
    """What a scrape is answered."""
    return "".join(f"{line}\n" for family in families for line in _lines(family)).encode()


def _lines(family: Family | HistogramFamily) -> Iterator[str]:
    name = family.name
    yield f"# HELP {name} {_escaped(family.help)}"
    if isinstance(family, Family):
        yield f"# TYPE {name} {family.kind}"
        for labels, value in family.samples:
            yield f"{name}{_braced(labels)} {_number(value)}"
        return
    yield f"# TYPE {name} histogram"
    for labels, histogram in family.samples:
        for bound, count in histogram.buckets():
            yield f"{name}_bucket{_braced({**labels, 'le': _number(bound)})} {count}"
        yield f"{name}_sum{_braced(labels)} {_number(histogram.sum)}"
        yield f"{name}_count{_braced(labels)} {histogram.count}"


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_quotable(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quotable(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
