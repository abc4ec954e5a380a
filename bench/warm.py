"""The programs that are forked: warm, and waiting. They need nothing but the base image.

The base image has neither numpy nor the module `mmap`. What a fork costs is the number of mappings,
threads and processes, so those are made by hand: blocks of random bytes with holes between them,
and threads that wait. The bytes are the same in each run, as are those of a program that loads the
same data: otherwise there would be nothing to find for whoever looks for equal pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandboxd.client import Sandbox, Template

MIB = 1 << 20
# Beside what the program fills: interpreter, kernel, and what is made while it fills.
ROOM_BYTES = 512 * MIB
THREADS = 8
BLOCKS = 224
SMALLEST_MIB = 64

SINGLE = """
import _thread, hashlib, os, random, re, selectors, socket, subprocess, threading, time
content = random.Random(0).randbytes
block = 1 << 20 if {mib} > 256 else 1 << 18
blocks = [content(block) for _ in range({blocks})]
del blocks[::2]
ballast = bytearray(({mib} << 20) - len(blocks) * block)
for at in range(0, len(ballast), 1 << 20):
    ballast[at : at + (1 << 20)] = content(min(1 << 20, len(ballast) - at))
gate = threading.Event()
threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range({threads} - 1)]
for thread in threads:
    thread.start()
print("ready", flush=True)
{end}
"""
FOR_EVER = "time.sleep(1000000)"
TREE = (
    "sh -c 'sleep 1000000 & sleep 1000000' & "
    "python3 -c 'import time; time.sleep(1000000)' & sleep 0.5; echo ready; wait"
)


@dataclass(frozen=True)
class Program:
    """It writes "ready" when it is, and waits."""

    argv: tuple[str, ...]
    memory_bytes: int
    """Limit of a sandbox for it."""


def python(mib: int = 512, *, end: str = FOR_EVER) -> Program:
    """CPython with so much random content, eight threads and more than 150 mappings; `end`: what
    it does when it is ready."""
    if mib < SMALLEST_MIB:
        raise ValueError(f"{mib} MiB hold no {BLOCKS // 2} blocks; {SMALLEST_MIB} do")
    text = SINGLE.format(mib=mib, blocks=BLOCKS, threads=THREADS, end=end)
    return Program(("python3", "-c", text), mib * MIB + ROOM_BYTES)


def tree() -> Program:
    """Five processes: two shells, two sleeps, one CPython."""
    return Program(("sh", "-c", TREE), ROOM_BYTES)


@contextmanager
def template(socket: str, program: Program) -> Iterator[Template]:
    """A template of the program, taken once it said that it is ready."""
    with Sandbox.create(socket=socket, memory_bytes=program.memory_bytes) as sandbox:
        with sandbox.commands.run(program.argv, True) as handle:
            said = next(iter(handle)).data
            if said != b"ready\n":
                raise RuntimeError(f"the program said {said!r}")
            made = sandbox.snapshot()
    try:
        yield made
    finally:
        made.remove()
        made.close()
