"""How a command's end is reported. Pure."""

from __future__ import annotations

import signal as signals
from typing import Any

from sandboxd.init_protocol import Exited
from sandboxd.lifecycle import EndReason
from sandboxd.protocol import ExitReason

# A shell reports the death of its child by SIGKILL this way.
_SHELL_SIGKILL = 128 + signals.SIGKILL
_ASKED_FOR = frozenset(
    {EndReason.DESTROYED, EndReason.EXPIRED, EndReason.LEASE_ENDED, EndReason.SHUTDOWN}
)


def may_be_oom(exited: Exited) -> bool:
    """True for the ends that a kernel kill for memory can have."""
    died_by_sigkill = exited.signal == signals.SIGKILL or exited.exit_code == _SHELL_SIGKILL
    return died_by_sigkill and not exited.killed_by_request and not exited.timed_out


def exit_reason(exited: Exited, *, oom_kills: int) -> ExitReason:
    """Why the command ended. `oom_kills`: kernel kills for memory in its sandbox while it ran.

    With two commands at once in a sandbox, each that died by SIGKILL meanwhile may have been the
    kernel's victim; v1 groups do not say which.
    """
    if exited.timed_out:
        return ExitReason.TIMEOUT
    if oom_kills > 0 and may_be_oom(exited):
        return ExitReason.OOM
    if exited.killed_by_request and exited.signal is not None:
        return ExitReason.KILLED
    return ExitReason.SIGNALED if exited.signal is not None else ExitReason.EXITED


def lost_reason(end: EndReason | None) -> ExitReason:
    """Why a command has no exit status: its sandbox ended under it."""
    if end is EndReason.OOM:
        return ExitReason.OOM
    if end in _ASKED_FOR:
        return ExitReason.KILLED
    return ExitReason.LOST


def exit_payload(
    exited: Exited | None,
    reason: ExitReason,
    *,
    stdout_bytes: int,
    stderr_bytes: int,
    truncated: bool,
    duration_s: float,
) -> dict[str, Any]:
    """Content of the EXIT frame. The byte counts are what the command wrote, also what was cut."""
    return {
        "exit_code": exited.exit_code if exited is not None else None,
        "signal": exited.signal if exited is not None else None,
        "reason": reason.value,
        "stdout_bytes": stdout_bytes,
        "stderr_bytes": stderr_bytes,
        "truncated": truncated,
        "duration_s": exited.duration_us / 1e6 if exited is not None else duration_s,
        "user_cpu_s": exited.user_us / 1e6 if exited is not None else 0.0,
        "system_cpu_s": exited.system_us / 1e6 if exited is not None else 0.0,
        "max_rss_bytes": exited.max_rss_kib * 1024 if exited is not None else 0,
    }
