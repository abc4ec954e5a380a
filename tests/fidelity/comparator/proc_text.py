"""Files of /proc as named values. A file or key that is not known is taken as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator

Fields = Iterator[tuple[str, Hashable]]

_STAT = [
    "pid", "comm", "state", "ppid", "pgrp", "session", "tty_nr", "tpgid", "flags", "minflt",
    "cminflt", "majflt", "cmajflt", "utime", "stime", "cutime", "cstime", "priority", "nice",
    "num_threads", "itrealvalue", "starttime", "vsize", "rss", "rsslim", "startcode", "endcode",
    "startstack", "kstkesp", "kstkeip", "signal", "blocked", "sigignore", "sigcatch", "wchan",
    "nswap", "cnswap", "exit_signal", "processor", "rt_priority", "policy",
    "delayacct_blkio_ticks", "guest_time", "cguest_time", "start_data", "end_data", "start_brk",
    "arg_start", "arg_end", "env_start", "env_end", "exit_code",
]  # fmt: skip
_STATM = ["size", "resident", "shared", "text", "lib", "data", "dt"]


def _stat(text: str) -> Fields:
    pid, _, rest = text.partition(" (")
    comm, _, rest = rest.rpartition(") ")
    yield from zip(_STAT, (pid, comm, *rest.split()), strict=True)


def _statm(text: str) -> Fields:
    yield from zip(_STATM, text.split(), strict=True)


def _keys(text: str) -> Fields:
    """`key: value` lines; what precedes them is a title."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield " ".join(key.split()), " ".join(value.split())
        elif line.strip("- "):
            yield "line", line


def _rollup(text: str) -> Fields:
    yield from _keys(text.partition("\n")[2])


def _limits(text: str) -> Fields:
    for line in text.splitlines()[1:]:
        name, *values = re.split(r"\s{2,}", line.strip())
        yield name, tuple(values)


def _schedstat(text: str) -> Fields:
    yield from zip(("run", "wait", "slices"), text.split(), strict=False)


def _words(text: str) -> Fields:
    yield from ((f"word {index}", word) for index, word in enumerate(text.split()))


def _mounts(text: str) -> Fields:
    """mountinfo(5) without the numbers of mounts and devices; layers apart."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, root, where, options, *propagation = left.split(" ")
        kind, source, super_options = right.split(" ", 2)
        layers = [
            each for each in super_options.split(",") if re.match("(lower|upper|work)dir", each)
        ]
        others = [each for each in super_options.split(",") if each not in layers]
        shape = [re.sub(":.*", "", each) for each in propagation if each]
        yield where, (root, options, *shape, kind, source, *others)
        if layers:
            yield f"{where} layers", tuple(layers)


def _mount_list(text: str) -> Fields:
    for line in text.splitlines():
        source, where, kind, options, *_ = line.split(" ")
        others = [
            each for each in options.split(",") if not re.match("(lower|upper|work)dir", each)
        ]
        yield where, (source, kind, *others)


def _groups(text: str) -> Fields:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _timers(text: str) -> Fields:
    for timer in re.split(r"(?m)^(?=ID: )", text)[1:]:
        (_, number), *others = _keys(timer)
        for key, value in others:
            yield f"timer {number} {key}", value


_KINDS: dict[str, Callable[[str], Fields]] = {
    "stat": _stat,
    "statm": _statm,
    "limits": _limits,
    "schedstat": _schedstat,
    "mountinfo": _mounts,
    "mounts": _mount_list,
    "cgroup": _groups,
    "timers": _timers,
    "io": _keys,
    "ksm_stat": _words,
    "sched": _keys,
    "smaps_rollup": _rollup,
    "status": _keys,
}


def parse(name: str, content: bytes) -> Fields:
    """Fields of the file, whose names start with that of the file."""
    kind = _KINDS.get(name)
    if kind is None:
        yield name, content
        return
    for key, value in kind(content.decode("utf-8", "surrogateescape")):
        yield f"{name}/{key}", value
