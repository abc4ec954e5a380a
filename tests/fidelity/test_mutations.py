"""A test of the tests: each leaves one restored item out, and the row of that item must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.rows import run_row

# Part of the name of the operations that are left out → the program that must fail.
LEFT_OUT = {
    "pending signal": "signals",
    "action of signal": "signals",
    "robust list": "threads",
    "tid address": "threads",
    "name": "threads",
    "interval timer": "timers",
    "timer 1": "timers",
    "personality": "settings",
    "I/O priority": "settings",
    "machine checks": "settings",
    "memory barriers": "settings",
    "memory rights": "settings",
    "time stamps": "settings",
    "memory merging": "settings",
    "coredump_filter": "settings",
    "scheduling": "settings",
    "affinity": "identity",
    "bounding set": "identity",
    "groups": "identity",
    "no_new_privs": "identity",
    "parent death signal": "identity",
    "limit 7": "identity",
    "seccomp filter": "identity",
    "umask": "files",
    "lock of a file": "files",
    "lock of a range": "file_signals",
    "lease": "file_signals",
    "signal of a file": "file_signals",
    "lock on descriptor": "files",
    "foreground group": "terminals",
    "controlling terminal": "terminals",
    "subreaper": "sessions",
    "memory layout": "stack",
    "pool filter": "discard",
    "attachment of segment": "system_v",
    "removal of segment": "system_v",
    "semaphores": "system_v",
    "undo of semaphores": "semaphores",
    "shared tables": "tables",
    "root directory": "leaderless",
    "message queue 0 content": "system_v",
    "nameless file": "nameless",
    "input of terminal": "terminal_queues",
    "output of terminal": "terminal_queues",
    "waiting Unix connection": "unix_names",
    "Unix datagram": "unix_names",
    "received data": "tcp",
    "unsent data": "tcp",
    "end of a TCP stream": "tcp",
    "TCP connection option": "tcp",
    "datagram": "udp",
    "internet socket option": "udp",
}


@pytest.mark.parametrize("item", sorted(LEFT_OUT))
def test_row_notices(
    item: str,
    rootfs: Path,
    program_layer: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.fidelity.rows.BUDGET_S", 8.0)
    row = run_row(
        rootfs, program_layer, workspace, [f"/t/{LEFT_OUT[item]}"], forks=1, leave_out=item
    )
    assert row.original == "ok"
    assert row.forks != ["ok"]
