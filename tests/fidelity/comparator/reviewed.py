"""What may differ between an original and its fork: fields, a reason, and where the reason holds.

`row` is a piece of the row of docs/fidelity.md that says so, for all that a program can notice;
test_comparator.py looks it up there. Where it is empty the reason lies in the moment or in the
machine: nothing that a fork could have.
"""

from __future__ import annotations

import fnmatch
import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from tests.fidelity.comparator.compare import ABSENT, Difference, differences
from tests.fidelity.comparator.record import Record

Rule = Callable[[Difference, Record, Record], bool]


@dataclass(frozen=True)
class Reviewed:
    fields: tuple[str, ...]
    """Shell patterns."""
    reason: str
    row: str = ""
    holds: Rule = lambda difference, original, fork: True

    def allows(self, difference: Difference, original: Record, fork: Record) -> bool:
        return any(
            fnmatch.fnmatchcase(difference.field, pattern) for pattern in self.fields
        ) and self.holds(difference, original, fork)


# --- where a reason holds ---


def _process(owner: str) -> str:
    return " ".join(owner.split()[:2])


def _number(value: object) -> int:
    return int(str(value).split()[0])


def _one_more(difference: Difference, original: Record, fork: Record) -> bool:
    """Than an original, which has none; in forks of forks it is the same one again."""
    was_forked = bool(original.memory[_process(difference.owner)].plans)
    return not was_forked and _number(difference.fork) == _number(difference.original) + 1


def _few_pages_of_plan(difference: Difference, original: Record, fork: Record) -> bool:
    """Two where threads sleep: the second page says which of them have left."""
    return difference.original in (0, 1, 2) and difference.fork in (1, 2)


def _gone(difference: Difference, original: Record, fork: Record) -> bool:
    return difference.fork == ABSENT


def _pool_pages(difference: Difference, original: Record, fork: Record) -> bool:
    return difference.fork in ("anonymous", "", ABSENT, "0")


def _empty_or_not_alike(difference: Difference, original: Record, fork: Record) -> bool:
    was, is_now = (
        re.search("[1-9]", str(each)) is not None for each in (difference.original, difference.fork)
    )
    return was == is_now


def _runs_on(difference: Difference, original: Record, fork: Record) -> bool:
    again = fork.fields.get((difference.owner, "fd/info/it_interval")) != "(0, 0)"
    return again or _empty_or_not_alike(difference, original, fork)


def _of_the_harness(difference: Difference, original: Record, fork: Record) -> bool:
    return difference.original == "none"


def _first_thread(owner: str) -> str:
    process = _process(owner)
    return f"{process} thread {process.split()[1]}"


def _in_another_order(difference: Difference, original: Record, fork: Record) -> bool:
    was, is_now = (sorted(bytes(each).split()) if isinstance(each, bytes) else each
                   for each in (difference.original, difference.fork))  # fmt: skip
    return was == is_now


def _in_its_plan(difference: Difference, original: Record, fork: Record) -> bool:
    """Also of an original that is a fork."""
    owner = difference.owner if "thread" in difference.owner else _first_thread(difference.owner)
    for record in (original, fork):
        rip = record.fields.get((owner, "thread/registers/rip"), 0)
        plans = record.memory[_process(owner)].plans
        if any(start <= _number(rip) < end for start, end in plans):
            return True
    return False


def _same_but_for_its_opening(difference: Difference, original: Record, fork: Record) -> bool:
    """O_LARGEFILE, which open() sets and TIOCGPTPEER does not, and O_TMPFILE."""
    base = 8 if difference.field == "fd/info/flags" else 10
    was, is_now = (int(str(each), base) for each in (difference.original, difference.fork))
    return (was ^ is_now) & ~(0o100000 | 0o20200000) == 0


def _both_deleted(difference: Difference, original: Record, fork: Record) -> bool:
    return all(str(each).endswith(" (deleted)") for each in (difference.original, difference.fork))


def _without_pid(difference: Difference, original: Record, fork: Record) -> bool:
    def rest(value: object) -> object:
        return (*value[:3], *value[4:]) if isinstance(value, tuple) else value

    return rest(difference.original) == rest(difference.fork)


def _some_went_on(difference: Difference, original: Record, fork: Record) -> bool:
    """Between two ends in the sandbox: from one queue to the other, nothing more or less."""
    was, is_now = difference.original, difference.fork
    if difference.field == "network/tcp":
        return _in_all(was) == _in_all(is_now)
    if difference.field == "fd/queue/first":
        if not (isinstance(was, tuple) and isinstance(is_now, tuple)):
            return False
        return bytes(was[0]).startswith(is_now[0]) or bytes(is_now[0]).startswith(was[0])
    return any(each == (difference.owner, "fd/socket/TCP options") for each in original.fields)


def _in_all(sockets: object) -> int:
    """Bytes in all queues of `network/tcp`."""
    queues = (each[4].split(":") for each in cast(tuple[tuple[str, ...], ...], sockets))
    return sum(int(sent, 16) + int(received, 16) for sent, received in queues)


def _stream(difference: Difference, original: Record, fork: Record) -> bool:
    kind = fork.fields.get((difference.owner, "fd/socket/kind"))
    return isinstance(kind, tuple) and kind[1] == 1


def _counter_of_protocols(difference: Difference, original: Record, fork: Record) -> bool:
    """Only numbers differ."""
    texts = (re.sub(r"\d+|\s+", "", str(each)) for each in (difference.original, difference.fork))
    return len(set(texts)) == 1


def _is_not_kept(difference: Difference, original: Record, fork: Record) -> bool:
    return difference.field not in {f"zombie/stat/{name}" for name in ZOMBIE_HAS}


def _has_no_content(difference: Difference, original: Record, fork: Record) -> bool:
    link = str(original.fields.get((difference.owner, "fd/link")))
    without = link.startswith(("/memfd:", "/proc/")) or _NAMESPACE.fullmatch(link) is not None
    return without or (difference.owner, "fd/content") not in fork.fields


def _is_all_of_proc(difference: Difference, original: Record, fork: Record) -> bool:
    return original.fields.get((difference.owner, "fd/link")) == "/proc"


def _pool_filter(difference: Difference, original: Record, fork: Record) -> bool:
    """It is the oldest: one more than those of the original."""
    *name, index = difference.field.split()
    next_one = (difference.owner, " ".join([*name, str(int(index) + 1)]))
    filters = [each for each in (difference.original, difference.fork) if each != ABSENT]
    return next_one not in fork.fields and all(
        isinstance(each, bytes) and POOL_FILTER_MARK in each for each in filters
    )


def _is_shared_anonymous(difference: Difference, original: Record, fork: Record) -> bool:
    return (difference.original, difference.fork) == (
        "/dev/zero (deleted)",
        "/memfd:shared-anonymous (deleted)",
    )


def _is_removed_segment(difference: Difference, original: Record, fork: Record) -> bool:
    was, is_now = str(difference.original), difference.fork
    return was.startswith("/SYSV") and is_now == "/SYSV00000000 (deleted)"


def _more(difference: Difference, original: Record, fork: Record) -> bool:
    return _number(difference.fork) >= _number(difference.original)


def _waits_stopped(difference: Difference, original: Record, fork: Record) -> bool:
    """Its leader is in the plan's kill(itself, SIGSTOP)."""
    process = _process(difference.owner)
    leader = _first_thread(process)
    called = [fork.fields.get((leader, f"thread/registers/{name}")) for name in ("orig_rax", "rsi")]
    return called == [_KILL, signal.SIGSTOP] and any(
        area.attributes["name"] == FORK_MEMORY for area in fork.memory[process].areas
    )


def _ended(difference: Difference, original: Record, fork: Record) -> bool:
    closed = 7
    return fork.fields.get((difference.owner, "fd/socket/TCP state")) == closed


def _options(level: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"fd/socket/{level} option {number}" for number in numbers)


def _both(names: str) -> tuple[str, ...]:
    """/proc has most files twice, for the process and for each thread."""
    return tuple(f"{kind}/{name}" for name in names.split() for kind in ("process", "thread"))


_KILL = 62
_NAMESPACE = re.compile(r"(cgroup|ipc|mnt|net|pid|time|user|uts) \d+")
POOL_FILTER_MARK = b"Venu\0\0\0\0Pool"
FORK_MEMORY = "/memfd:venus-fork (deleted)"
ZOMBIE_HAS = ("pid", "comm", "state", "ppid", "pgrp", "session", "exit_code", "exit_signal")
PLAN_ROW = "one read-only executable mapping `venus-plan` per process"
EXTENT_ROW = "pages of `venus-extent` in `maps`"
TCP_ROW = "retransmission and congestion state is fresh"
SYSTEM_V_ROW = "times and the pids of the last calls are those of the fork"

REVIEWED = (
    # --- of the moment, of the machine, of the tests ---
    Reviewed(
        ("network/softnet_stat/*", "network/stat/*"), "counters of the machine"
    ),
    Reviewed(
        _both("sched/se.* sched/clock-delta arch_status stat/processor"),
        "what the scheduler has seen of it",
    ),
    Reviewed(_options("SOL_SOCKET", 49), "the CPU that the last packet came in on"),
    Reviewed(_both("cgroup/"), "a group for each command that the harness starts"),
    Reviewed(_both("mountinfo//*layers"), "the files of the original are one layer more of a fork"),
    Reviewed(("fd/info/mount",), "/dev/null that the harness gave it", holds=_of_the_harness),
    Reviewed(("fd/info/it_value",), "time goes on", holds=_runs_on),
    Reviewed(("fd/info/ticks",), "time goes on", holds=_more),
    Reviewed(("fd/stat/nlink",), "it counts the processes of the machine", holds=_is_all_of_proc),
    # --- processes ---
    Reviewed(
        _both(
            "io/* schedstat/* sched/nr_* stat/minflt stat/cminflt stat/majflt stat/cmajflt "
            "stat/utime stat/stime stat/cutime stat/cstime stat/starttime ksm_stat/* "
            "stat/delayacct_blkio_ticks status/voluntary_ctxt_switches "
            "status/nonvoluntary_ctxt_switches"
        ),
        "a fork has done nothing yet",
        "CPU times, start time, fault counters",
    ),
    Reviewed(
        _both(
            "stat/rss statm/resident statm/shared oom_score status/VmHWM status/VmRSS "
            "status/RssAnon status/RssFile status/RssShmem status/VmPTE status/VmPeak "
            "smaps_rollup/*"
        ),
        "pages of the pool are a file's, and those that were not touched are in no page table",
        "resident memory",
    ),
    Reviewed(
        _both("status/Seccomp_filters"),
        "the filter for calls on pool memory",
        "`Seccomp_filters` in `/proc/PID/status`",
        _one_more,
    ),
    Reviewed(
        ("thread/seccomp/newest but *",),
        "the filter for calls on pool memory",
        "`Seccomp_filters` in `/proc/PID/status`",
        _pool_filter,
    ),
    Reviewed(
        ("thread/registers/*", "thread/syscall", "process/syscall"),
        "it sleeps for what remained, from a call in the plan",
        PLAN_ROW,
        _in_its_plan,
    ),
    Reviewed(
        (
            "thread/registers/*", "thread/xstate", "thread/signal mask", "area", "area/content",
            *_both("syscall stat/blocked status/SigBlk status/ShdPnd status/SigPnd"),
        ),
        "it stops in the plan, with all signals blocked, and goes on from there",
        "a stopped process",
        _waits_stopped,
    ),
    Reviewed(_both("stat/flags"), "it has not called exec", "flags in `/proc/PID/stat`"),
    Reviewed(_both("status/FDSize"), "room in a table", "`FDSize`"),
    Reviewed(_both("status/SigQ"), "zombies of the user count, whose signals are gone", "`SigQ`"),
    Reviewed(("zombie/*",), "it is read by nobody but who looks at /proc", "of a zombie",
             _is_not_kept),
    Reviewed(("thread/children",), "they come in the order in which they are made",
             "order of children", _in_another_order),
    Reviewed(("process/autogroup",), "a number of the session", "autogroup"),
    # --- memory ---
    Reviewed(
        _both(
            "stat/vsize statm/size statm/data statm/text status/VmSize status/VmLib "
            "status/VmData status/VmStk status/VmExe"
        ),
        "pool pages count as a file's, and the plan is one page more",
        EXTENT_ROW,
    ),
    Reviewed(("process/plan mappings",), "a process cannot unmap what it executes", PLAN_ROW,
             _few_pages_of_plan),
    Reviewed(
        ("area/backing", "area/name", "area/offset"),
        "changed pages of private file mappings lie in the pool, and nothing there has a name",
        EXTENT_ROW,
        _pool_pages,
    ),
    Reviewed(("area/name",), "it is a memfd there", "`maps` shows `/memfd:shared-anonymous`",
             _is_shared_anonymous),
    Reviewed(("area/name",), "its key is gone with it", "`/SYSV00000000`", _is_removed_segment),
    Reviewed(("area/THPeligible",), "the pool has its huge pages from elsewhere", EXTENT_ROW,
             _pool_pages),
    Reviewed(("area/flag ac",), "memory is accounted when it becomes writable", "`VmFlags`", _gone),
    Reviewed(("area/flag gu",), "says only that a guard may have been here", "`VmFlags`", _gone),
    Reviewed(("area/flag gd",), "only the lowest page can be mapped so", "growing stacks", _gone),
    Reviewed(("area/content wiped on fork",), "that is what it asks for", "`MADV_WIPEONFORK`"),
    # --- descriptors ---
    Reviewed(("fd/info/ino", "fd/info/eventfd-id"), "the kernel's choice", "st_ino and st_dev"),
    Reviewed(("fd/stat/mtime_ns",), "they are new", "times of pipes, sockets, files of `/proc`",
             _has_no_content),
    Reviewed(("fd/link",), "another file has that name", "where it is free, name", _both_deleted),
    Reviewed(
        ("fd/fcntl/F_GETFL", "fd/info/flags"),
        "another way to open the same file",
        "`O_LARGEFILE`",
        _same_but_for_its_opening,
    ),
    Reviewed(("fd/info/lock",), "it is of the open file, which another process has opened",
             "the pid that `/proc/locks` shows", _without_pid),
    Reviewed(
        ("fd/queue/SIOCOUTQ", *_options("SOL_SOCKET", 55)),
        "the kernel's memory for what waits, which may be packed in another way",
        "memory that queues take",
    ),
    Reviewed(
        ("fd/queue/FIONREAD", "fd/queue/first", "network/tcp", *_options("IPPROTO_TCP", 10)),
        "a buffer that is tuned anew may have room for more of what the other end has sent",
        "buffers that were tuned by the kernel are tuned anew",
        _some_went_on,
    ),
    Reviewed(("fd/socket/peer credentials",), "who has connected it", "`SO_PEERCRED`"),
    Reviewed(_options("SOL_SOCKET", 7, 8), "sizes that nobody has set",
             "buffers that were tuned by the kernel are tuned anew"),
    Reviewed(_options("IPPROTO_TCP", 2, 10, 12, 21, 24, 26),
             "size of the next segment, quick acknowledgements, clock, congestion", TCP_ROW),
    Reviewed(("fd/socket/TCP options",), "of a connection that is over", TCP_ROW, _ended),
    Reviewed(
        (*_options("IPPROTO_IP", 33), *_options("IPPROTO_IPV6", 17, 18, 26)),
        "they follow from how a connection came about, and nothing uses them afterwards",
        "options that have no use for a connection",
        _stream,
    ),
    # --- the whole sandbox ---
    Reviewed(
        (
            "network/dev/*", "network/dev_snmp6/*", "network/netstat/*", "network/snmp/*",
            "network/snmp6/*", "network/protocols/*", "network/sockstat/*",
        ),
        "counters of a network namespace of its own",
        "counters in `/proc/net`",
        _counter_of_protocols,
    ),
    Reviewed(
        tuple(f"system-v/{name}/{field}" for name in ("shm", "sem", "msg")
              for field in ("?time*", "?pid*", "l?pid*")),
        "they are made anew", SYSTEM_V_ROW,
    ),
)  # fmt: skip


def unreviewed(original: Record, fork: Record, also: Iterable[Reviewed] = ()) -> list[Difference]:
    """What no entry allows."""
    entries = (*REVIEWED, *also)
    return [
        difference
        for difference in differences(original, fork)
        if not any(entry.allows(difference, original, fork) for entry in entries)
    ]
