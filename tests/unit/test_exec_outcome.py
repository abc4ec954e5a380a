"""How the end of a command is told."""

from __future__ import annotations

import pytest

from sandboxd.exec_outcome import exit_payload, exit_reason, lost_reason
from sandboxd.init_protocol import Exited
from sandboxd.lifecycle import EndReason
from sandboxd.protocol import ExitReason


def exited(
    exit_code: int | None = None,
    signal: int | None = None,
    *,
    timed_out: bool = False,
    killed: bool = False,
) -> Exited:
    return Exited(
        exec_id=1,
        exit_code=exit_code,
        signal=signal,
        timed_out=timed_out,
        killed_by_request=killed,
        core_dumped=False,
        user_us=1_500_000,
        system_us=0,
        max_rss_kib=2,
        duration_us=2_000_000,
    )


@pytest.mark.parametrize(
    ("end", "oom_kills", "reason"),
    [
        (exited(0), 0, ExitReason.EXITED),
        (exited(0), 3, ExitReason.EXITED),
        (exited(1), 1, ExitReason.EXITED),
        (exited(137), 0, ExitReason.EXITED),
        (exited(137), 1, ExitReason.OOM),
        (exited(signal=9), 0, ExitReason.SIGNALED),
        (exited(signal=9), 1, ExitReason.OOM),
        (exited(signal=11), 1, ExitReason.SIGNALED),
        (exited(signal=9, timed_out=True), 1, ExitReason.TIMEOUT),
        (exited(0, timed_out=True), 0, ExitReason.TIMEOUT),
        (exited(signal=9, killed=True), 1, ExitReason.KILLED),
        (exited(signal=15, killed=True), 0, ExitReason.KILLED),
        (exited(0, killed=True), 0, ExitReason.EXITED),
    ],
)
def test_reasons(end: Exited, oom_kills: int, reason: ExitReason) -> None:
    assert exit_reason(end, oom_kills=oom_kills) is reason


@pytest.mark.parametrize("end", [None, *EndReason])
def test_a_lost_command_says_what_ended_its_sandbox(end: EndReason | None) -> None:
    expected = {
        None: ExitReason.LOST,
        EndReason.OOM: ExitReason.OOM,
        EndReason.KILLED: ExitReason.LOST,
        EndReason.CAPTURE_CUT: ExitReason.LOST,
        EndReason.CREATE_FAILED: ExitReason.LOST,
    }
    assert lost_reason(end) is expected.get(end, ExitReason.KILLED)


def test_the_payload_of_a_lost_command_claims_nothing() -> None:
    payload = exit_payload(
        None, ExitReason.LOST, stdout_bytes=3, stderr_bytes=0, truncated=True, duration_s=0.5
    )
    assert payload["exit_code"] is None and payload["signal"] is None
    assert (payload["duration_s"], payload["stdout_bytes"], payload["truncated"]) == (0.5, 3, True)


def test_units_are_seconds_and_bytes() -> None:
    payload = exit_payload(
        exited(7), ExitReason.EXITED, stdout_bytes=0, stderr_bytes=0, truncated=False, duration_s=9
    )
    assert (payload["exit_code"], payload["duration_s"]) == (7, 2.0)
    assert (payload["user_cpu_s"], payload["max_rss_bytes"]) == (1.5, 2048)
