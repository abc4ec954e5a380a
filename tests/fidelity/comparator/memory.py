"""Every mapping and every page of a stopped process, read without changing any of it.

Pages are read through /proc/PID/mem only where they exist: touching a hole would allocate. What a
mapping shows of its file is read from the file.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fidelity.comparator import kernel
from tests.fidelity.comparator.kernel import PAGE
from tests.fidelity.comparator.record import Area, ProcessMemory

EXTENT, PLAN = "/memfd:venus-extent (deleted)", "/memfd:venus-plan (deleted)"
_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+) *(.*)")
# Time of day, and the kernel's own pages for it: they are the same for every process.
_NO_CONTENT = ("[vvar]", "[vvar_vclock]", "[vsyscall]")
_ZERO = zlib.crc32(bytes(PAGE))
# Figures of smaps depend on where mappings are cut; smaps_rollup has them for the process.
_ATTRIBUTES = ("KernelPageSize", "MMUPageSize", "ProtectionKey", "THPeligible")


@dataclass
class _Mapping:
    start: int
    end: int
    mode: str
    offset: int
    inode: int
    name: str
    attributes: dict[str, Hashable] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


def _mappings(smaps: str) -> Iterator[_Mapping]:
    current: _Mapping | None = None
    for line in smaps.splitlines():
        if header := _HEADER.fullmatch(line):
            if current:
                yield current
            start, end, mode, offset, inode, name = header.groups()
            current = _Mapping(
                int(start, 16), int(end, 16), mode, int(offset, 16), int(inode), name
            )
            continue
        assert current is not None, line
        key, _, value = line.partition(":")
        if key == "VmFlags":
            current.flags = value.split()
        elif key in _ATTRIBUTES:
            current.attributes[key] = value.strip()
    if current:
        yield current


def _policies(numa_maps: str) -> dict[int, str]:
    lines = (line.split() for line in numa_maps.splitlines())
    return {int(words[0], 16): words[1] for words in lines}


class _Reader:
    def __init__(self, process: Path, blind: Sequence[tuple[int, int]]) -> None:
        self._process = process
        self._blind = blind
        self._memory = os.open(process / "mem", os.O_RDONLY | os.O_CLOEXEC)
        self._pagemap = os.open(process / "pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._memory)
        os.close(self._pagemap)

    def guards(self, mapping: _Mapping) -> list[tuple[int, int]]:
        runs = kernel.page_runs(self._pagemap, mapping.start, mapping.end)
        return [(run.start, run.end) for run in runs if run.categories & kernel.GUARD]

    def pages(self, mapping: _Mapping) -> Iterator[tuple[int, int]]:
        """Address and checksum of pages that are not zero."""
        own: dict[int, int] = {}
        if mapping.mode[3] == "p":
            for run in kernel.page_runs(self._pagemap, mapping.start, mapping.end):
                if run.categories & (kernel.FILE | kernel.ZERO_PAGE | kernel.GUARD):
                    continue
                content = os.pread(self._memory, run.end - run.start, run.start)
                assert len(content) == run.end - run.start, "a page that exists cannot be read"
                own.update(_checksums(run.start, self._blinded(run.start, content)))
        if mapping.inode != 0:
            for address, checksum in self._file_pages(mapping):
                own.setdefault(address, checksum)
        return ((address, checksum) for address, checksum in own.items() if checksum != _ZERO)

    def _blinded(self, address: int, content: bytes) -> bytes:
        for start, size in self._blind:
            at = start - address
            if 0 <= at < len(content):
                content = content[:at] + bytes(size) + content[at + size :]
        return content

    def _file_pages(self, mapping: _Mapping) -> Iterator[tuple[int, int]]:
        path = self._process / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at, end = mapping.offset, mapping.offset + mapping.end - mapping.start
            while at < end:
                try:
                    at = max(at, os.lseek(fd, at, os.SEEK_DATA) & -PAGE)
                except OSError:
                    return  # nothing but holes
                hole = min(end, -(-os.lseek(fd, at, os.SEEK_HOLE) // PAGE) * PAGE)
                while at < hole:
                    content = os.pread(fd, min(hole - at, 1 << 20), at)
                    if not content:
                        return
                    content += bytes(-len(content) % PAGE)
                    yield from _checksums(mapping.start + at - mapping.offset, content)
                    at += len(content)
        finally:
            os.close(fd)


def _checksums(address: int, content: bytes) -> Iterator[tuple[int, int]]:
    view = memoryview(content)
    for at in range(0, len(content), PAGE):
        yield address + at, zlib.crc32(view[at : at + PAGE])


def _areas(mapping: _Mapping, policy: str, guards: list[tuple[int, int]]) -> Iterator[Area]:
    """The mapping, cut where guards begin and end."""
    attributes: dict[str, Hashable] = {
        "protection": mapping.mode[:3],
        "shared": mapping.mode[3] == "s",
        "memory policy": policy,
        **mapping.attributes,
        **{f"flag {flag}": True for flag in mapping.flags},
    }
    if mapping.inode == 0 or mapping.name == EXTENT:
        attributes["backing"] = "anonymous"
        attributes["name"] = "" if mapping.name == EXTENT else mapping.name
    else:
        attributes["backing"] = "file"
        attributes["name"] = mapping.name
        attributes["offset"] = mapping.offset - mapping.start
    cuts = sorted({mapping.start, mapping.end, *(edge for guard in guards for edge in guard)})
    for start, end in itertools.pairwise(cuts):
        guarded = any(first <= start < last for first, last in guards)
        yield Area(start, end, {**attributes, "guard": guarded})


def read_memory(process: Path, blind: Sequence[tuple[int, int]]) -> ProcessMemory:
    """All of it. `blind`: address and size of bytes that the kernel writes as it likes."""
    memory = ProcessMemory()
    policies = _policies((process / "numa_maps").read_text())
    smaps = (process / "smaps").read_text()
    reader = _Reader(process, blind)
    try:
        for mapping in _mappings(smaps):
            if mapping.name == PLAN:
                memory.plans.append((mapping.start, mapping.end))
                continue
            policy = policies.get(mapping.start, "none")
            if mapping.name in _NO_CONTENT:
                memory.areas += _areas(mapping, policy, [])
                continue
            memory.areas += _areas(mapping, policy, reader.guards(mapping))
            memory.pages.update(reader.pages(mapping))
    finally:
        reader.close()
    return memory
