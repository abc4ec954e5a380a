"""The programs that are forked: warm, and waiting. They need nothing but the base image.

The base image has neither numpy nor the module `mmap`. What a fork costs is the number of mappings,
threads and processes, so those are made by hand: blocks of random bytes with holes between them,
and threads that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxd.client import Sandbox, Template

MEMORY_BYTES = 2 << 30
SINGLE = """
import _thread, hashlib, os, random, re, selectors, socket, subprocess, threading, time
blocks = [os.urandom(1 << 20) for _ in range(224)]
del blocks[::2]
ballast = os.urandom((512 << 20) - (len(blocks) << 20))
gate = threading.Event()
threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(7)]
for thread in threads:
    thread.start()
print("ready", flush=True)
time.sleep(1000000)
"""
TREE = (
    "sh -c 'sleep 1000000 & sleep 1000000' & "
    "python3 -c 'import time; time.sleep(1000000)' & sleep 0.5; echo ready; wait"
)


def python_command() -> list[str]:
    """CPython with 512 MiB of random content, eight threads and more than 150 mappings."""
    return ["python3", "-c", SINGLE]


def tree_command() -> list[str]:
    """A tree of five processes: two shells, two sleeps, one CPython."""
    return ["sh", "-c", TREE]


@contextmanager
def template(socket: str, argv: list[str]) -> Iterator[Template]:
    """A template of the program, taken once it said that it is ready."""
    with Sandbox.create(socket=socket, memory_bytes=MEMORY_BYTES) as sandbox:
        with sandbox.commands.run(argv, True) as handle:
            said = next(iter(handle)).data
            if said != b"ready\n":
                raise RuntimeError(f"the program said {said!r}")
            made = sandbox.snapshot()
    try:
        yield made
    finally:
        made.remove()
        made.close()
