"""A warm interpreter with numpy: its memory is shared, its generators are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.client import Sandbox, Template, warm_python
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess


@pytest.fixture(scope="module")
def warm(daemon: DaemonProcess, programs_image: str) -> Iterator[Template]:
    template = Template.build(
        warm_python({"image": programs_image}, ["numpy"]), socket=daemon.socket
    )
    yield template
    template.remove()


def test_generators_of_numpy_are_seeded_anew(warm: Template) -> None:
    draw = "import numpy; print(numpy.random.rand(), numpy.linalg.det(numpy.eye(50)))"
    seen = set()
    for fork in warm.fork(2):
        with fork:
            seen |= {fork.commands.run(["python3", "-c", draw]).stdout for _ in range(2)}
    assert len(seen) == 4 and all(each.endswith(" 1.0\n") for each in seen)


def test_what_imports_numpy_holds_little_of_its_own(warm: Template) -> None:
    look = (
        "import numpy, re; text = open('/proc/self/smaps_rollup').read();"
        "print(re.search(r'Anonymous: +(\\d+)', text)[1])"
    )
    [fork] = warm.fork()
    with fork:
        own = int(fork.commands.run(["python3", "-c", look]).stdout)
        cold = int(fork.commands.run(["/usr/bin/python3", "-c", look]).stdout)
    assert own < cold / 2


def test_what_flees_its_session_ends_with_the_program(warm: Template) -> None:
    code = """
import subprocess, time
subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True)
print(1, flush=True)
time.sleep(1000)
"""
    [fork] = warm.fork()
    with fork:

        def sleeping(sandbox: Sandbox = fork) -> bool:
            return sandbox.commands.run("pgrep -x sleep", check=False).stdout != ""

        with fork.commands.run(["python3", "-c", code], True) as handle:
            assert next(iter(handle)).data == b"1\n"
            eventually(sleeping, "it does not start")
            handle.kill()
        eventually(lambda: not sleeping(), "something is left")
