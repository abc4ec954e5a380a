"""Runs many tasks in one sandbox, each in a fresh directory, as an episode would.

A driver inside the sandbox starts the same shells that an episode starts one by one through the
daemon; thousands of cases then cost one command.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.client import Sandbox

# The image's Python is minimal: no json, no subprocess.
_DRIVER = """
import os, signal

def shell(script):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.execve("/bin/sh", ["/bin/sh", "-c", script], os.environ)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    os.set_blocking(reading, False)
    output = b""
    try:
        while piece := os.read(reading, 65536):
            output += piece
    except BlockingIOError:
        pass  # a background process holds the other end
    os.close(reading)
    return os.waitstatus_to_exitcode(status), output

outcomes = []
for index, (setup, commands, verify) in enumerate(eval(open("/tmp/cases").read())):
    directory = f"/root/cases/{index}"
    os.makedirs(directory)
    os.chdir(directory)
    prepared = shell(setup)
    outputs = [shell(command)[1] for command in commands]
    outcomes.append((prepared, outputs, shell(verify)))
    try:
        os.kill(-1, signal.SIGKILL)  # all that the case left running, but not this process
    except ProcessLookupError:
        pass
os.chdir("/")
shell("rm -rf /root/cases")
with open("/tmp/outcomes", "w") as file:
    file.write(repr(outcomes))
"""


@dataclass(frozen=True)
class Case:
    setup: str
    commands: tuple[str, ...]
    verify: str


@dataclass(frozen=True)
class Outcome:
    setup_exit: int
    setup_output: bytes
    observations: tuple[bytes, ...]
    verify_exit: int
    verify_output: bytes


def run_cases(sandbox: Sandbox, cases: Sequence[Case], timeout_s: float = 240) -> list[Outcome]:
    """What each case printed, and its verdict, in order."""
    plain = [(case.setup, case.commands, case.verify) for case in cases]
    sandbox.files.write("/tmp/cases", repr(plain))
    sandbox.commands.run(["python3", "-c", _DRIVER], timeout=timeout_s)
    found = ast.literal_eval(sandbox.files.read("/tmp/outcomes"))
    return [Outcome(*prepared, tuple(outputs), *verdict) for prepared, outputs, verdict in found]
