"""Who is admitted and who sees whom."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.bounds import (
    CreateOptions,
    checked_limits,
    checked_output_bytes,
    checked_timeout_ms,
    checked_ttl,
)
from sandboxd.config import Config
from sandboxd.errors import InvalidRequest, LimitExceeded, NotFound, SandboxGone, Unsupported
from sandboxd.lifecycle import EndReason, Event, State
from sandboxd.listing import SandboxFilter, page, parse_labels
from sandboxd.population import Population
from sandboxd.registry import SandboxRecord
from sandboxd.sandbox import ExecBudget

CONFIG = Config(max_sandboxes=3, max_sandboxes_per_tenant=2, max_queued_creates=1)


def record(sandbox_id: str) -> SandboxRecord:
    return SandboxRecord(
        sandbox_id=sandbox_id,
        image="base",
        tenant_uid=1,
        memory_bytes=1,
        pids=1,
        cpu_cores=1,
        disk_bytes=None,
        hostname="h",
        init_pid=1,
        init_start_ticks=1,
        boot_id="",
        created_at=0,
        expires_boottime_s=None,
    )


def test_pages_of_a_list() -> None:
    population = Population(Config())
    for index in range(5):
        sandbox = population.new(f"sb-{index}", 1, "base")
        labels = {"parity": str(index % 2), "all": "yes"}
        # Two were made at the same instant.
        created_at = float(max(index, 1))
        sandbox.record = dataclasses.replace(
            record(sandbox.sandbox_id), labels=labels, created_at=created_at, hostname=f"h{index}"
        )
        population.add(sandbox)
    population.add(population.new("sb-creating", 1, "base"))

    def ids(wanted: SandboxFilter, limit: int = 1000) -> list[list[str]]:
        pages, after = [], ""
        while True:
            found, following = page(population, wanted, limit, after)
            pages.append([each.sandbox_id[3:] for each in found])
            if following is None:
                return pages
            after = following

    assert ids(SandboxFilter()) == [["0", "1", "2", "3", "4"]]
    assert ids(SandboxFilter(), 2) == [["0", "1"], ["2", "3"], ["4"]]
    assert ids(SandboxFilter(), 5) == [["0", "1", "2", "3", "4"]]
    assert ids(SandboxFilter(labels={"parity": "1", "all": "yes"})) == [["1", "3"]]
    assert ids(SandboxFilter(labels={"all": "no"})) == [[]]
    assert ids(SandboxFilter(hostname="h2")) == [["2"]]
    assert ids(SandboxFilter(state=State.PAUSED)) == [[]]
    # One that ends between two pages hides none of the others.
    _, after = page(population, SandboxFilter(), 2, "")
    population.remove(population.find(0, "sb-1", "x"))
    assert after is not None
    assert [each.sandbox_id for each in page(population, SandboxFilter(), 1, after)[0]] == ["sb-2"]
    for limit, wrong in ((0, ""), (1001, ""), (1, "nonsense"), (1, "nan:"), (1, "1.0")):
        with pytest.raises(InvalidRequest):
            page(population, SandboxFilter(), limit, wrong)


def test_labels_of_a_query() -> None:
    assert parse_labels(["a=b=c", "d="], "x") == {"a": "b=c", "d": ""}
    for wrong in (["a"], ["=b"], ["a=b"] * 65):
        with pytest.raises(InvalidRequest):
            parse_labels(wrong, "x")


@pytest.fixture
def population() -> Population:
    population = Population(CONFIG)
    for sandbox_id, uid in (("a", 1), ("b", 1), ("c", 2)):
        population.add(population.new(sandbox_id, uid, "base"))
    return population


def test_each_bound_refuses_by_its_name(population: Population) -> None:
    with pytest.raises(LimitExceeded, match="max_sandboxes is 3"):
        population.admit(2, 0)
    population.remove(population.find(0, "c", "x"))
    with pytest.raises(LimitExceeded, match="max_sandboxes_per_tenant is 2"):
        population.admit(1, 0)
    with pytest.raises(LimitExceeded, match="max_queued_creates is 1"):
        population.admit(2, 1)
    population.admit(2, 0)


def test_a_tenant_has_what_it_has_now(population: Population) -> None:
    for sandbox_id in ("a", "b", "c"):
        population.remove(population.find(0, sandbox_id, "x"))
        population.admit(1, 0)
    population.add(population.new("d", 1, "base"))
    with pytest.raises(LimitExceeded, match="max_sandboxes_per_tenant is 2"):
        population.admit(1, -1, 2)


def test_a_row_is_admitted_whole_or_not_at_all(population: Population) -> None:
    population.remove(population.find(0, "a", "x"))
    population.remove(population.find(0, "c", "x"))
    with pytest.raises(LimitExceeded, match="max_sandboxes_per_tenant is 2"):
        population.admit(1, 0, 2)
    with pytest.raises(LimitExceeded, match="max_queued_creates is 1"):
        population.admit(2, 0, 2)
    population.admit(1, 0, 1)


def test_root_sees_all_and_a_tenant_its_own(population: Population) -> None:
    assert [each.sandbox_id for each in population.visible(0)] == ["a", "b", "c"]
    assert [each.sandbox_id for each in population.visible(2)] == ["c"]
    assert population.find(0, "a", "x").tenant_uid == 1
    with pytest.raises(NotFound):
        population.find(2, "a", "x")


def test_an_end_is_told_to_its_tenant_alone_and_only_if_it_ever_ran(population: Population) -> None:
    told, untold = population.find(0, "a", "x"), population.find(0, "b", "x")
    told.record = record("a")
    for event in (Event.READY, Event.EXPIRED, Event.DESTROYED):
        told.apply(event, EndReason.EXPIRED)
    assert told.state is State.GONE
    population.remove(told)
    population.remove(untold)
    with pytest.raises(SandboxGone, match="time to live"):
        population.find(1, "a", "x")
    for uid, sandbox_id in ((2, "a"), (1, "b")):
        with pytest.raises(NotFound):
            population.find(uid, sandbox_id, "x")


def test_remembered_ends_are_bounded() -> None:
    population = Population(CONFIG)
    for index in range(5000):
        sandbox = population.new(str(index), 1, "base")
        sandbox.record = record(str(index))
        population.add(sandbox)
        population.remove(sandbox)
    with pytest.raises(NotFound):
        population.find(1, "0", "x")
    with pytest.raises(SandboxGone):
        population.find(1, "4999", "x")


def test_the_budget_of_commands_is_of_the_sandbox_and_of_the_daemon() -> None:
    budget = ExecBudget(per_sandbox=2, total=3)
    budget.take(0, "exec", "a")
    budget.take(1, "exec", "a")
    with pytest.raises(LimitExceeded, match="max_execs_per_sandbox is 2"):
        budget.take(2, "exec", "a")
    budget.take(0, "exec", "b")
    with pytest.raises(LimitExceeded, match="max_execs is 3"):
        budget.take(0, "exec", "c")
    assert budget.used == 3


def test_ids_of_commands_never_come_twice_over_generations() -> None:
    population, seen = Population(CONFIG), set()
    for generation in range(3):
        sandbox = population.new("a", 1, "base")
        values = {**vars(record("a")), "generation": generation}
        sandbox.record = SandboxRecord(**values)
        seen |= {sandbox.next_exec_id() for _ in range(10)}
    assert len(seen) == 30


def test_limits_take_defaults_and_refuse_what_no_storage_can_hold() -> None:
    limits = checked_limits(CONFIG, CreateOptions("base", pids=7), limits_disk=True)
    assert (limits.pids, limits.memory_bytes) == (7, CONFIG.default_memory_bytes)
    assert limits.disk_bytes == CONFIG.default_disk_bytes
    assert checked_limits(CONFIG, CreateOptions("base"), limits_disk=False).disk_bytes is None
    with pytest.raises(Unsupported):
        checked_limits(CONFIG, CreateOptions("base", disk_bytes=1 << 30), limits_disk=False)
    with pytest.raises(InvalidRequest, match="memory_bytes"):
        checked_limits(CONFIG, CreateOptions("base", memory_bytes=1), limits_disk=True)


def test_timeouts_are_whole_milliseconds_above_zero() -> None:
    assert checked_timeout_ms(CONFIG, 0.0001) == 1
    assert checked_timeout_ms(CONFIG, 1.5) == 1500
    assert checked_timeout_ms(CONFIG, None) == CONFIG.max_exec_timeout_s * 1000 < 1 << 32
    for wrong in (0, -1, CONFIG.max_exec_timeout_s * 2):
        with pytest.raises(InvalidRequest):
            checked_timeout_ms(CONFIG, wrong)
    with pytest.raises(InvalidRequest):
        checked_ttl(CONFIG, CONFIG.max_ttl_s * 2, "x")
    assert checked_output_bytes(CONFIG, 0) == 0
    with pytest.raises(InvalidRequest):
        checked_output_bytes(CONFIG, -1)
