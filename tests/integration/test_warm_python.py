"""Templates with a warm interpreter: python3 runs in a fork of it, and is python3 in all else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, Template, warm_python
from sandboxd.errors import InvalidRequest
from tests.integration.test_cli import Cli
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess

IS_WARM = "import sys; print('getopt' in sys.modules)"


@pytest.fixture(scope="module")
def warm(daemon: DaemonProcess) -> Iterator[Template]:
    template = Template.build(
        warm_python({"image": "base"}, ["getopt", "random"]), socket=daemon.socket
    )
    yield template
    template.remove()


@pytest.fixture
def sandbox(warm: Template) -> Iterator[Sandbox]:
    [made] = warm.fork()
    with made:
        yield made


def run(sandbox: Sandbox, line: str, **options: object) -> tuple[int, str, str]:
    done = sandbox.commands.run(line, check=False, **options)  # type: ignore[call-overload]
    return done.exit_code, done.stdout, done.stderr


def test_programs_run_in_forks_of_it(sandbox: Sandbox) -> None:
    assert run(sandbox, f'python3 -c "{IS_WARM}"') == (0, "True\n", "")
    assert run(sandbox, f'/usr/bin/python3 -c "{IS_WARM}"') == (0, "False\n", "")


@pytest.mark.parametrize(
    "line",
    [
        "python3 -c 'import sys; print(sys.argv, __name__, sys.path[0])' a 'b c' ''",
        "python3 /root/program.py x y",
        "cd /root && python3 program.py",
        "cd /root && python3 -m program 1 2",
        "python3 - left right < /root/program.py",
        "python3 < /root/program.py",
        "python3 /root/nothing.py",
        "python3 -c 'import sys; sys.exit(7)'",
        "python3 -c 'import sys; sys.exit(\"a reason\")'",
        "python3 -c 'raise ValueError(3)'",
        "python3 -c 'def f(:'",
        "python3 -c 'import os; os.abort()'; echo $?",
        "python3 -c 'import os; os.kill(os.getpid(), 15)'; echo $?",
        "python3 -c 'raise KeyboardInterrupt'; echo $?",
        "python3 -c 'import os; print(os.getcwd(), oct(os.umask(0)), sorted(os.environ.items()))'",
        "umask 027; A=1 B= python3 -c 'import os; print(oct(os.umask(0)), os.environ[\"A\"])'",
        "PYTHONPATH=/root/more python3 -c 'import extra; print(extra.__file__)'",
        "PYTHONHASHSEED=0 python3 -c 'print(hash(\"a\"))'",
        "python3 -V",
        "python3 -B -c 'print(1)'",
        "printf 'one\\ntwo' | python3 -c 'import sys; print(list(sys.stdin))'",
        'python3 -c \'print("out"); import sys; print("err", file=sys.stderr); print("é")\'',
        "python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))' | od -c",
        "python3 -c 'import atexit; atexit.register(print, \"at the end\"); print(1)'",
        "python3 -c 'import threading; threading.Timer(.1, print, [\"later\"]).start()'",
        "python3 -c 'print(\"x\" * 3000000)' | head -c 10; echo ${PIPESTATUS:-none}",
        "python3 -c 'def f():\n raise RuntimeError\nf()'",
        "seq 200000 | python3 -c 'import sys; print(sum(map(int, sys.stdin)))'",
        'python3 -c \'import subprocess; print(subprocess.run(["ls", "/"], capture_output=True))\'',
    ],
)
def test_it_acts_as_python3(sandbox: Sandbox, line: str) -> None:
    sandbox.files.write(
        "/root/program.py",
        "import os, sys\nprint(sys.argv, __name__, globals().get('__file__'), sys.path[0])\n",
    )
    sandbox.files.write("/root/more/extra.py", "")
    as_it_is = run(sandbox, line.replace("python3", "/usr/bin/python3"))
    assert run(sandbox, line) == tuple(
        each.replace("/usr/bin/python3 -", "python3 -") if isinstance(each, str) else each
        for each in as_it_is
    )


def test_streams_go_both_ways_while_it_runs(sandbox: Sandbox) -> None:
    echo = "import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)"
    with sandbox.commands.run(["python3", "-c", echo], True, stdin=True) as handle:
        outputs = iter(handle)
        for word in ("one", "two"):
            handle.send_stdin(f"{word}\n".encode())
            assert next(outputs).data == f"heard {word}\n".encode()
        handle.close_stdin()
        assert list(outputs) == [] and handle.exit.exit_code == 0


def test_signals_reach_it_and_its_end_is_told(sandbox: Sandbox) -> None:
    code = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(5))
print(1, flush=True)
time.sleep(100)
"""
    with sandbox.commands.run(["python3", "-c", code], True) as handle:
        assert next(iter(handle)).data == b"1\n"
        handle.send_signal(signal.SIGTERM)
        assert handle.wait(check=False).exit_code == 5


def processes(sandbox: Sandbox) -> int:
    # One may end between its finding and its listing.
    return len(sandbox.commands.run("ls -d /proc/[0-9]*", check=False).stdout.split())


def test_everything_that_it_started_ends_with_it(sandbox: Sandbox) -> None:
    before = processes(sandbox)
    code = """
import subprocess, time
for _ in range(3):
    subprocess.Popen(["sleep", "1000"])
print(1, flush=True)
time.sleep(1000)
"""
    with sandbox.commands.run(["python3", "-c", code], True) as handle:
        assert next(iter(handle)).data == b"1\n"
        handle.kill()
        assert handle.wait(check=False).exit_code != 0
    # Who asked whether the interpreter stands may still have been on the way out before.
    eventually(lambda: processes(sandbox) <= before, "something is left")


def test_generators_are_seeded_anew_or_not(daemon: DaemonProcess, warm: Template) -> None:
    draw = ["python3", "-c", "import random; print(random.random())"]
    seen = set()
    for fork in warm.fork(2):
        with fork:
            seen |= {fork.commands.run(draw).stdout for _ in range(2)}
    assert len(seen) == 4
    kept = Template.build(
        warm_python({"image": "base"}, ["random"], reseed=False), socket=daemon.socket
    )
    seen = set()
    for fork in kept.fork(2):
        with fork:
            seen |= {fork.commands.run(draw).stdout for _ in range(2)}
    assert len(seen) == 1
    kept.remove()


def test_others_get_python_as_it_is(sandbox: Sandbox) -> None:
    asked = sandbox.commands.run(["python3", "-c", IS_WARM], user="nobody")
    assert asked.stdout == "False\n"
    # Without a warm interpreter, too.
    sandbox.commands.run("kill -9 $(pgrep -f '[w]arm_python_program')")
    assert sandbox.commands.run(["python3", "-c", IS_WARM]).stdout == "False\n"


def test_many_at_once_and_forks_in_the_middle(sandbox: Sandbox) -> None:
    code = "import time\nprint(1, flush=True)\ntime.sleep(1.5)\nprint(2)"
    handles = [sandbox.commands.start(["python3", "-c", code]) for _ in range(5)]
    eventually(
        lambda: all(sandbox.commands.output(each.exec_id) == b"1\n" for each in handles),
        "they do not start",
    )
    [fork] = sandbox.fork()
    with fork:
        for each in handles:
            eventually(
                lambda e=each: fork.commands.output(e.exec_id) == b"2\n",  # type: ignore[misc]
                "one does not end in the fork",
            )
        assert fork.commands.run(["python3", "-c", IS_WARM]).stdout == "True\n"
    for each in handles:
        assert sandbox.commands.wait(each.exec_id).exit_code == 0
        assert sandbox.commands.output(each.exec_id) == b"1\n2\n"


def test_a_recipe_file_asks_for_it(daemon: DaemonProcess, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('image = "base"\n[warm_python]\nimports = ["getopt"]\n')
    cli = Cli(daemon.socket)
    template = Template.get(cli.text("template", "build", str(recipe)), socket=daemon.socket)
    [fork] = template.fork()
    with fork:
        assert fork.commands.run(["python3", "-c", IS_WARM]).stdout == "True\n"
    template.remove()


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no name of a module"):
        warm_python({"image": "base"}, ["os; import sys"])
