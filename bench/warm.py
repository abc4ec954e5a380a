"""The programs that are forked: warm, and waiting.

What a fork costs is the number of mappings, threads and processes, so those are made by hand:
blocks with holes between them, and threads that wait. The content is random, but the same in each
run, as is that of programs that load the same data: otherwise there would be nothing to find for
whoever looks for equal pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.common import base_tar
from sandboxd.client import Daemon, Sandbox, Template

MIB = 1 << 20
# Beside what the program fills: interpreter, kernel, and what is made while it fills.
ROOM_BYTES = 512 * MIB
THREADS = 8
MAPPINGS = 160

SINGLE = """
import os, random, threading, time
content = random.Random(0).randbytes
if {numpy}:
    import numpy
    content = numpy.random.default_rng(0).bytes

# In pieces that malloc takes from its heap: a larger one, freed, would move the size from which on
# it makes a mapping of each.
def filled(mib):
    made = bytearray(mib << 20)
    for at in range(0, len(made), 1 << 16):
        made[at : at + (1 << 16)] = content(1 << 16)
    return made

def mappings():
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)

gate = threading.Event()
while len(os.listdir("/proc/self/task")) < {threads}:
    threading.Thread(target=gate.wait, daemon=True).start()
blocks = [filled(1) for _ in range(2 * min({mib} // 4, max(0, {mappings} - mappings())))]
del blocks[::2]
ballast = filled({mib} - len(blocks))
print("ready", flush=True)
{end}
"""
FOR_EVER = "time.sleep(1000000)"
TREE = (
    "sh -c 'sleep 1000000 & sleep 1000000' & "
    "python3 -c 'import time; time.sleep(1000000)' & sleep 0.5; echo ready; wait"
)


@dataclass(frozen=True)
class Origin:
    """An image of the daemon, and the tar that it was made from."""

    image: str
    tar: Path
    numpy: bool

    @classmethod
    def best(cls, socket: str) -> Origin:
        """The image with numpy where there is its tar, else the base image."""
        tar = Path(os.environ.get("VENUS_PROGRAMS_TAR", ""))
        if not tar.is_file():
            return cls("base", base_tar(), numpy=False)
        image = tar.stem  # which names its content
        with Daemon(socket) as daemon, tar.open("rb") as content:
            if image not in [each.name for each in daemon.list_images()]:
                daemon.import_image_tar(image, content)
        return cls(image, tar, numpy=True)


@dataclass(frozen=True)
class Program:
    """It writes "ready" when it is, and waits."""

    origin: Origin
    argv: tuple[str, ...]
    memory_bytes: int
    """Limit of a sandbox for it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Programs that it needs beside those of the image, by path."""
    background: bool = False
    """Whether the command ends when the program is ready."""


def python(origin: Origin, mib: int = 512, *, end: str = FOR_EVER) -> Program:
    """CPython, with numpy where there is one, so much random content, eight threads and at least
    160 mappings (fewer for less than 512 MiB); `end`: what it does when it is ready."""
    text = SINGLE.format(numpy=origin.numpy, mib=mib, mappings=MAPPINGS, threads=THREADS, end=end)
    return Program(origin, ("python3", "-c", text), mib * MIB + ROOM_BYTES)


def tree(origin: Origin) -> Program:
    """Five processes: two shells, two sleeps, one CPython."""
    return Program(origin, ("sh", "-c", TREE), ROOM_BYTES)


IN_BACKGROUND = """
: > /var/tmp/said
"$@" >> /var/tmp/said 2>&1 < /dev/null &
until grep -q ready /var/tmp/said; do sleep 0.05; done
echo ready
"""


def in_background(program: Program) -> Program:
    """The same, holding no pipe that leads to the daemon: each is up to two descriptors of the
    daemon by fork, and thousands of forks are more than it may have."""
    argv = ("sh", "-c", IN_BACKGROUND, "sh", *program.argv)
    return replace(program, argv=argv, background=True)


@contextmanager
def running(socket: str, program: Program) -> Iterator[Sandbox]:
    """A sandbox in which the program said that it is ready. It ends with the block."""
    with Sandbox.create(
        program.origin.image, socket=socket, memory_bytes=program.memory_bytes
    ) as sandbox:
        for path, content in program.files.items():
            sandbox.files.write(path, content, mode=0o755)
        with sandbox.commands.run(program.argv, True) as handle:
            output = iter(handle)
            said = next(output).data
            if said != b"ready\n":
                raise RuntimeError(f"the program said {said!r}")
            if program.background:
                handle.wait()
            yield sandbox


@contextmanager
def template(socket: str, program: Program) -> Iterator[Template]:
    """A template of the program, taken once it said that it is ready."""
    with running(socket, program) as sandbox:
        made = sandbox.snapshot()
    try:
        yield made
    finally:
        made.remove()
        made.close()


def facts(template: Template) -> dict[str, object]:
    """What the time and the memory of a fork depend on."""
    info = template.info
    return {
        "image": info.image,
        "processes": info.processes,
        "threads": info.threads,
        "mappings": info.mappings,
        "own_mib": round(info.own_bytes / MIB, 1),
    }
