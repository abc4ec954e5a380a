"""Everything that can be seen of a fork is as in its original, but for what is reviewed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from sandboxd import _native
from tests.fidelity.comparator.compare import Difference
from tests.fidelity.comparator.record import Record
from tests.fidelity.comparator.reviewed import FORK_MEMORY, REVIEWED, Reviewed, unreviewed
from tests.fidelity.comparator.sandbox import record_sandbox
from tests.fidelity.conftest import PROGRAMS
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, wait_for
from tests.support.init_harness import RawSandbox

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.c"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "fidelity.md"
# A stop finds a thread asleep nearly always, and what it does meanwhile is never twice the same.
TRIES = 8
_INTERRUPTED = {2**64 - number for number in (4, 512, 513, 514, 516)}

# What single programs do while they wait.
COMPUTES = "pid 5 thread 8"
OWN = {
    "threads": (Reviewed(("thread/registers/*", "thread/xstate", "*/syscall"), "it computes",
                         holds=lambda difference, *_: difference.owner == COMPUTES),),
    "timers": (
        Reviewed(("area/content",), "one of its sleeps is told what remains"),
        Reviewed(("thread/registers/*", "thread/xstate", "*/syscall"), "it measures the time",
                 holds=lambda difference, *_: difference.owner in ("pid 5", "pid 5 thread 5")),
    ),
}  # fmt: skip


def not_at_rest(record: Record) -> list[str]:
    """Threads that do not sleep, but for the one that computes and who is stopped in its plan."""
    found = []
    for (owner, name), value in record.fields.items():
        if name != "thread/registers/rax" or value in _INTERRUPTED:
            continue
        computes = owner == COMPUTES and record.fields[owner, "thread/comm"] == b"worker-2\n"
        areas = record.memory[owner.partition(" thread ")[0]].areas
        in_plan = any(area.attributes["name"] == FORK_MEMORY for area in areas)
        if not computes and not in_plan:
            found.append(f"{owner}: rax {value!r}")
    return found


def record_while_captured(
    sandbox: RawSandbox, frozen: Path, **options: object
) -> tuple[Record, _native.Template]:
    """A capture, and what there was to see at the moment of its stop."""
    for attempt in range(TRIES):
        seen: list[Record] = []
        layer = frozen.with_name(f"{frozen.name}-{attempt}")

        def look(seen: list[Record] = seen, layer: Path = layer) -> None:
            seen.append(record_sandbox(sandbox.pid))
            freeze(sandbox.upper, layer)

        template = _native.capture(sandbox.pid, [], look, **options)  # type: ignore[arg-type]
        awake = not_at_rest(seen[0])
        if not awake:
            break
    else:
        # What is compared then may differ for that alone.
        warnings.warn(f"not at rest at the last of {TRIES} captures: {awake}", stacklevel=2)
    layer.rename(frozen)
    return seen[0], template


def compare_row(
    rootfs: Path, layer: Path, workspace: Path, name: str, leave_out: str = ""
) -> list[Difference]:
    """Of a fork, and of a fork of that."""
    with isolated(rootfs, workspace / "original", [layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start(f"/t/{name}")
        assert wait_for(original, READY) == "ready"
        frozen = workspace / "frozen"
        before, template = record_while_captured(original, frozen, leave_out=leave_out)
        with isolated(rootfs, workspace / "fork", [frozen, layer]) as fork:
            assert restore(fork, template).exit_code == 0
            again = workspace / "again"
            after, second = record_while_captured(fork, again, parent=template)
            found = unreviewed(before, after, OWN.get(name, ()))
            if leave_out:
                return found
            with isolated(rootfs, workspace / "second", [again, frozen, layer]) as fork_of_fork:
                assert restore(fork_of_fork, second).exit_code == 0
                last, _ = record_while_captured(fork_of_fork, workspace / "last", parent=second)
            return found + unreviewed(after, last, OWN.get(name, ()))


@pytest.mark.parametrize("name", NAMES)
def test_only_reviewed_differences(
    name: str, rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    # What moves by itself (the queues of a connection, a thread that is awake for a moment) differs
    # now and then; what a fork lacks differs each time.
    for attempt in range(3):
        found = compare_row(rootfs, program_layer, workspace / str(attempt), name)
        if not found:
            break
    assert not found, "\n".join(map(str, found))


# Part of the name of the operations that are left out → program, and a field that then differs.
LEFT_OUT = {
    "action of signal": ("signals", "process/status/SigCgt"),
    "pending signal": ("signals", "process/pending"),
    "robust list": ("threads", "thread/robust list"),
    "name": ("threads", "thread/comm"),
    "affinity": ("identity", "thread/affinity"),
    "bounding set": ("identity", "process/status/CapBnd"),
    "groups": ("identity", "process/status/Groups"),
    "limit 7": ("identity", "process/limits/Max open files"),
    "seccomp filter": ("identity", "thread/seccomp/newest but 0"),
    "umask": ("files", "process/status/Umask"),
    "lock on descriptor": ("files", "fd/info/lock"),
    "scheduling": ("identity", "thread/scheduling/nice"),
    "foreground group": ("terminals", "process/stat/tpgid"),
    "timer 1": ("timers", "process/timers/timer 1 signal"),
    "Unix datagram": ("unix_names", "fd/queue/first"),
}


@pytest.mark.parametrize("item", sorted(LEFT_OUT))
def test_names_what_is_missing(
    item: str, rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    name, field = LEFT_OUT[item]
    found = compare_row(rootfs, program_layer, workspace, name, leave_out=item)
    assert field in {difference.field for difference in found}


def test_the_reviewed_list_is_that_of_the_document() -> None:
    text = re.sub(r"\s+", " ", DOCUMENT.read_text())
    for entry in REVIEWED:
        assert entry.row in text, f"docs/fidelity.md has no row with {entry.row!r}"
