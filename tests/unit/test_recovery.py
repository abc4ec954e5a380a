"""Decisions after a restart, state files and the lock of the run directory."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.errors import Conflict
from sandboxd.recovery import Action, RunLock, decide, process_start_ticks
from sandboxd.registry import STATE_FILE, Registry, SandboxRecord, decode_record, encode_record
from sandboxd.tracer import MARK_NAME, cut_captures

RECORD = SandboxRecord(
    sandbox_id="sb-1",
    image="base",
    tenant_uid=1000,
    memory_bytes=1 << 30,
    pids=64,
    cpu_cores=0.5,
    disk_bytes=None,
    hostname="h",
    init_pid=4242,
    init_start_ticks=99,
    boot_id="this boot",
    created_at=1.5,
    expires_boottime_s=100.0,
    env={"A": "ü"},
    labels={"k": "v"},
)


def decision(record: SandboxRecord | None, live: dict[int, int], now: float = 50.0) -> Action:
    found = decide(
        records={"sb-1": record},
        remnants={"sb-1"},
        live_inits=live,
        boot_id="this boot",
        now_boottime_s=now,
    )
    assert [each.sandbox_id for each in found] == ["sb-1"]
    return found[0].action


def test_a_sandbox_whose_init_lives_is_adopted() -> None:
    assert decision(RECORD, {4242: 99}) is Action.ADOPT


def test_a_sandbox_that_goes_with_its_command_is_not_adopted() -> None:
    record = dataclasses.replace(RECORD, ephemeral=True)
    assert decode_record(encode_record(record)) == record
    assert decision(record, {4242: 99}) is Action.REMOVE


def test_a_sandbox_whose_lease_ended_is_not_adopted() -> None:
    record = dataclasses.replace(RECORD, lease="ls-1")
    assert decode_record(encode_record(record)) == record
    for leases, action in (((), Action.REMOVE), (("ls-1",), Action.ADOPT)):
        [found] = decide(
            records={"sb-1": record},
            remnants=(),
            live_inits={4242: 99},
            boot_id="this boot",
            now_boottime_s=50.0,
            leases=leases,
        )
        assert found.action is action


def test_a_reused_pid_is_not_taken_for_its_init() -> None:
    assert decision(RECORD, {4242: 100}) is Action.REMOVE


def test_the_same_pid_and_ticks_of_another_boot_are_not_its_init() -> None:
    record = dataclasses.replace(RECORD, boot_id="an earlier boot")
    assert decision(record, {4242: 99}) is Action.REMOVE


def test_a_deadline_that_passed_while_no_daemon_ran_holds() -> None:
    assert decision(RECORD, {4242: 99}, now=100.0) is Action.REMOVE


def test_one_that_is_to_be_paused_at_its_deadline_is_adopted_unless_it_is_paused() -> None:
    record = dataclasses.replace(RECORD, pause_on_expiry=True)
    assert decision(record, {4242: 99}, now=100.0) is Action.ADOPT
    paused = dataclasses.replace(record, paused=True)
    assert decision(paused, {4242: 99}, now=99.0) is Action.ADOPT
    assert decision(paused, {4242: 99}, now=100.0) is Action.REMOVE


def test_a_sandbox_whose_capture_was_cut_is_removed(tmp_path: Path) -> None:
    mark = tmp_path / "sb-1" / MARK_NAME
    mark.parent.mkdir()
    for content, action in (("cut", Action.REMOVE), ("", Action.ADOPT)):
        mark.write_text(content)
        [found] = decide(
            records={"sb-1": RECORD},
            remnants=[],
            live_inits={4242: 99},
            boot_id=RECORD.boot_id,
            now_boottime_s=0,
            cut_captures=cut_captures(tmp_path),
        )
        assert found.action is action


def test_a_cut_create_is_removed() -> None:
    assert decision(None, {}) is Action.REMOVE


@given(st.sets(st.text(min_size=1)), st.sets(st.text(min_size=1)))
def test_no_id_is_ignored(with_file: set[str], remnants: set[str]) -> None:
    decisions = decide(
        records=dict.fromkeys(with_file, None),
        remnants=remnants,
        live_inits={},
        boot_id="",
        now_boottime_s=0,
    )
    assert {each.sandbox_id for each in decisions} == with_file | remnants
    assert len(decisions) == len(with_file | remnants)


def test_a_record_comes_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "image": "x"}', b"\xff"]
)
def test_what_is_no_state_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_record(content)


def test_the_registry_tells_whole_files_from_remnants(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for name in ("sb-1", "sb-2", "sb-3", "sb-4"):
        (tmp_path / name).mkdir()
    registry.write(RECORD)
    (tmp_path / "sb-2" / STATE_FILE).write_text('{"version": 1, "sandbox')
    # A file that says it is another sandbox's must not be believed.
    (tmp_path / "sb-3" / STATE_FILE).write_bytes(encode_record(RECORD))
    assert registry.read_all() == {"sb-1": RECORD, "sb-2": None, "sb-3": None, "sb-4": None}
    registry.forget("sb-1")
    registry.forget("sb-1")
    assert registry.read_all()["sb-1"] is None


def test_a_write_that_is_cut_leaves_the_old_state(tmp_path: Path) -> None:
    (tmp_path / "sb-1").mkdir()
    registry = Registry(tmp_path)
    registry.write(RECORD)
    (tmp_path / "sb-1" / "state.tmp").write_text("half")
    assert registry.read_all() == {"sb-1": RECORD}
    later = dataclasses.replace(RECORD, generation=1)
    registry.write(later)
    assert registry.read_all() == {"sb-1": later}


def test_what_is_reserved_or_left_of_a_cut_write_is_replaced(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    (tmp_path / "sb-1").mkdir()
    registry.reserve("sb-1")
    assert registry.read_all() == {"sb-1": None}
    [reserved] = (tmp_path / "sb-1").iterdir()
    reserved.write_bytes(b"x" * 100_000)
    registry.write(RECORD)
    assert registry.read_all() == {"sb-1": RECORD}


def test_start_ticks_name_a_process_and_not_a_zombie() -> None:
    own = process_start_ticks(os.getpid())
    assert own is not None and own == process_start_ticks(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_ticks(child.pid) is None
    child.wait()


def test_the_lock_keeps_a_second_holder_out_and_names_the_first(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path / "lock"), RunLock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(Conflict, match=str(os.getpid())):
        second.acquire()
    first.release()
    assert not (tmp_path / "lock").exists()
    second.acquire()
    second.release()
