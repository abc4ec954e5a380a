"""The table of `top` from two readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.cli.top_table import HEADER, SORT_KEYS, as_json, rows, shown
from sandboxd.client import SandboxLimits, SandboxMetrics, SandboxState, SandboxStats

MIB = 1 << 20
PLAIN = SandboxStats(
    id="sb-b",
    state=SandboxState.RUNNING,
    tenant_uid=0,
    created_at=100.0,
    limits={"memory_bytes": 64 * MIB, "pids": 9, "cpu_cores": 1.0},  # type: ignore[arg-type]
    metrics={"memory_bytes": 3 * MIB, "memory_peak_bytes": 0, "cpu_s": 2.0, "pids": 1},  # type: ignore[arg-type]
    read_at_s=10.0,
)


def used(
    stats: SandboxStats, *, cpu_s: float = 2.0, after_s: float = 0.0, **sizes: int
) -> SandboxStats:
    """As it is some seconds later."""
    metrics = {**vars(stats.metrics), "cpu_s": cpu_s, **sizes}
    return replace(stats, metrics=metrics, limits=vars(stats.limits), read_at_s=10.0 + after_s)


def named(name: str, **changes: object) -> SandboxStats:
    return replace(
        PLAIN, id=name, metrics=vars(PLAIN.metrics), limits=vars(PLAIN.limits), **changes
    )


def test_values_come_as_their_types() -> None:
    assert isinstance(PLAIN.limits, SandboxLimits) and isinstance(PLAIN.metrics, SandboxMetrics)


def test_cpu_is_what_it_used_between_the_two_readings() -> None:
    [row] = rows([PLAIN], [used(PLAIN, cpu_s=5.0, after_s=2.0)], "cpu")
    assert row.cpu_percent == pytest.approx(150.0)


@pytest.mark.parametrize("before", [[], [PLAIN]], ids=["new", "not read again"])
def test_of_one_reading_there_is_no_cpu(before: list[SandboxStats]) -> None:
    [row] = rows(before, [PLAIN], "cpu")
    assert row.cpu_percent is None
    assert as_json([row])[0]["cpu_percent"] is None
    assert shown([row], 160.0).splitlines()[-1].split()[2] == "-"


def test_a_counter_that_began_anew_is_no_negative_use() -> None:
    [row] = rows([PLAIN], [used(PLAIN, cpu_s=0.5, after_s=1.0)], "cpu")
    assert row.cpu_percent == 0.0


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("cpu", "sb-c"),
        ("private", "sb-d"),
        ("shared", "sb-e"),
        ("memory", "sb-f"),
        ("pids", "sb-g"),
        ("age", "sb-h"),
        ("id", "sb-b"),
    ],
)
def test_each_key_puts_its_own_first(sort: str, first: str) -> None:
    before = [PLAIN, *(named(f"sb-{letter}") for letter in "cdefgh")]
    now = [
        used(before[0], after_s=1.0),
        used(before[1], after_s=1.0, cpu_s=3.0),
        used(before[2], after_s=1.0, private_bytes=9 * MIB),
        used(before[3], after_s=1.0, shared_bytes=9 * MIB),
        used(before[4], after_s=1.0, memory_bytes=9 * MIB),
        used(before[5], after_s=1.0, pids=9),
        used(named("sb-h", created_at=1.0), after_s=1.0),
    ]
    found = [row.stats.id for row in rows(before, now[::-1], sort)]
    assert found[0] == first
    # The others in the order of their names.
    assert [each for each in found if each != first] == sorted(set(found) - {first})
    assert set(SORT_KEYS) == {"cpu", "private", "shared", "memory", "pids", "age", "id"}


def test_the_table_says_what_there_is() -> None:
    other = named("sb-c", state="paused", template="tp-1", lease="ls-1")
    found = rows(
        [PLAIN, other],
        [used(PLAIN, cpu_s=2.5, after_s=1.0, private_bytes=2 * MIB), used(other, after_s=1.0)],
        "cpu",
    )
    summary, empty, *table = shown(found, 160.0).splitlines()
    assert summary == "2 sandboxes: 1 running, 1 paused; CPU 50.0%; private 2M of 128M"
    assert empty == ""
    assert [line.split() for line in table] == [
        list(HEADER),
        ["sb-b", "running", "50.0", "2M", "0B", "3M", "64M", "1", "60s", "-", "-"],
        ["sb-c", "paused", "0.0", "0B", "0B", "3M", "64M", "1", "60s", "tp-1", "ls-1"],
    ]


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 10, 52, 53, 54, 99])
def test_what_does_not_fit_is_counted(lines: int) -> None:
    found = rows([], [named(f"sb-{number:03d}") for number in range(50)], "id")
    text = shown(found, 160.0, lines).splitlines()
    told = sum(line.startswith("sb-") for line in text)
    assert len(text) <= max(lines, 4)
    if lines >= 53:
        assert told == 50 and text[-1].startswith("sb-049")
    else:
        assert told == max(0, lines - 4)
        assert text[-1] == f"… {50 - told} more"
