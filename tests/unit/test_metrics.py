"""Histograms, families and their text, as Prometheus' own parser reads them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sandboxd.errors import ERROR_CLASSES, NotFound
from sandboxd.lifecycle import EndReason
from sandboxd.metrics.counters import ServiceCounters
from sandboxd.metrics.exposition import Family, HistogramFamily, encode
from sandboxd.metrics.families import COUNTERS, NodeFigures, ProcessFigures, families
from sandboxd.metrics.histogram import LATENCY_BOUNDS_S, Histogram
from sandboxd.metrics.instruments import HIT, Instruments

FIGURES = NodeFigures(
    version="1.2.3",
    storage_backend="btrfs",
    sandboxes={"creating": 0, "running": 2, "paused": 1, "stopping": 0},
    standing={"image": 3, "template": 4},
    standing_templates=2,
    creates_waiting=5,
    templates=6,
    leases=7,
    commands=8,
    memory_committed=9,
    memory_private=10,
    memory_shared=11,
    pool=12,
    pool_limit=13,
    process=ProcessFigures(start_s=1.5e9, cpu_s=0.25, memory=14, fds=15, max_fds=16),
)


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_a_histogram_counts_as_the_definition_says(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert list(histogram.buckets()) == [
        (bound, sum(value <= bound for value in values))
        for bound in (*LATENCY_BOUNDS_S, float("inf"))
    ]
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


def test_a_bound_belongs_to_its_own_bucket() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (1.0, 2.0, 3.0):
        histogram.observe(value)
    assert list(histogram.buckets()) == [(1.0, 1), (2.0, 2), (float("inf"), 3)]


@given(st.text(), st.floats(allow_nan=False))
def test_whatever_a_label_holds_is_read_as_it_was(value: str, number: float) -> None:
    text = encode([Family("a", "gauge", "what\nit \\ is", (({"name": value}, number),))])
    assert text.count(b"\n") == 3
    assert parsed(text) == {("a", (("name", value),)): number}


def test_a_histogram_is_read_as_one() -> None:
    histogram = Histogram([0.1, 1.0])
    histogram.observe(0.5)
    [family] = text_string_to_metric_families(
        encode([HistogramFamily("h_seconds", "h", (({"pool": HIT}, histogram),))]).decode()
    )
    assert (family.type, family.documentation) == ("histogram", "h")
    assert [(each.name, each.labels, each.value) for each in family.samples] == [
        ("h_seconds_bucket", {"pool": HIT, "le": "0.1"}, 0),
        ("h_seconds_bucket", {"pool": HIT, "le": "1.0"}, 1),
        ("h_seconds_bucket", {"pool": HIT, "le": "+Inf"}, 1),
        ("h_seconds_sum", {"pool": HIT}, 0.5),
        ("h_seconds_count", {"pool": HIT}, 1),
    ]


def test_all_that_is_counted_is_told() -> None:
    assert set(COUNTERS) == {field.name for field in fields(ServiceCounters)}
    instruments = Instruments()
    instruments.note_error(NotFound("no"))
    instruments.ends[EndReason.OOM] += 2
    instruments.fork[HIT].observe(0.004)
    counters = {name: place for place, name in enumerate(COUNTERS)}
    found = parsed(encode(families(FIGURES, counters, instruments)))
    assert {name: found[COUNTERS[name][0], ()] for name in COUNTERS} == counters
    assert found["venus_build_info", (("storage", "btrfs"), ("version", "1.2.3"))] == 1
    assert found["venus_sandboxes", (("state", "running"),)] == 2
    assert found["venus_errors_total", (("code", "not_found"),)] == 1
    assert found["venus_sandboxes_ended_total", (("reason", "oom"),)] == 2
    assert found["venus_fork_duration_seconds_count", (("pool", "hit"),)] == 1
    assert found["process_cpu_seconds_total", ()] == 0.25


def test_the_series_are_the_same_whatever_happens() -> None:
    """Those of an error that nobody has had yet, too: a counter that is absent has no rate."""
    quiet = parsed(encode(families(FIGURES, vars(ServiceCounters()), Instruments())))
    instruments = Instruments()
    for error_class in ERROR_CLASSES.values():
        instruments.note_error(error_class("no", object="named by a client"))
    told = parsed(encode(families(FIGURES, vars(ServiceCounters()), instruments)))
    assert set(told) == set(quiet)


def test_names_are_of_the_form_that_prometheus_asks_for() -> None:
    told = list(families(FIGURES, vars(ServiceCounters()), Instruments()))
    for family in told:
        assert family.name.startswith(("venus_", "process_"))
        is_counter = isinstance(family, Family) and family.kind == "counter"
        assert is_counter == family.name.endswith("_total")
        if isinstance(family, HistogramFamily):
            assert family.name.endswith("_seconds")
    names = [family.name for family in told]
    assert len(names) == len(set(names))
