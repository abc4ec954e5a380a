"""/proc/net: sockets by what can be told of them, everything else as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from tests.fidelity.comparator.record import Names

Fields = Iterator[tuple[str, Hashable]]

_MAY_BE_ACCEPTED = ("01", "08")  # ESTABLISHED, CLOSE_WAIT
_INTERNET = re.compile(r"(tcp|udp|udplite|raw|icmp)6?")


def _internet(text: str, names: Names) -> Hashable:
    """Addresses and state of each socket; not its slot, timers and kernel address. Its queues are
    looked at through its descriptor."""
    found = []
    for line in text.splitlines()[1:]:
        _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
        # What nobody holds any more goes by itself.
        if inode != "0" or state in _MAY_BE_ACCEPTED:
            found.append((names.known("socket", int(inode)), local, remote, state, uid))
    return tuple(sorted(found))


def _unix(text: str, names: Names) -> Hashable:
    """All but the kernel address."""
    found = []
    for line in text.splitlines()[1:]:
        _, count, protocol, flags, kind, state, inode, *path = line.split(maxsplit=7)
        name = names.known("socket", int(inode))
        found.append((name, count, protocol, flags, kind, state, "".join(path)))
    return tuple(sorted(found))


def _netlink(text: str, names: Names) -> Hashable:
    """All but the kernel address."""
    lines = (line.split() for line in text.splitlines()[1:])
    return tuple(sorted((names.known("socket", int(each[-1])), *each[1:-1]) for each in lines))


_SOCKETS: dict[str, Callable[[str, Names], Hashable]] = {"unix": _unix, "netlink": _netlink}


def network_fields(directory: Path, names: Names) -> Fields:
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(directory))
        try:
            text = path.read_text()
        except OSError as error:
            yield name, f"error {error.errno}"
            continue
        read = _internet if _INTERNET.fullmatch(name) else _SOCKETS.get(name)
        if read:
            yield name, read(text, names)
        else:
            for number, line in enumerate(text.splitlines()):
                yield f"{name}/line {number}", line
