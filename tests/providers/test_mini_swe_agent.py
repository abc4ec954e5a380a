"""mini-swe-agent's own loop, with the model that it has for tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", "/tmp/venus-mini-swe-agent")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

from sandboxd.client import Sandbox
from sandboxd.errors import SandboxGone
from sandboxd.providers.mini_swe_agent import VenusEnvironment

CLASS = "sandboxd.providers.mini_swe_agent.VenusEnvironment"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def venus() -> Iterator[VenusEnvironment]:
    with VenusEnvironment() as environment:
        yield environment


def run_agent(environment: Any, *commands: str) -> tuple[dict[str, Any], DefaultAgent]:
    outputs = [make_output("next", [{"command": command}]) for command in commands]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You have {{system}} in {{cwd}}.",
        instance_template="Do {{task}}.",
        cost_limit=100,
    )
    return agent.run("it"), agent


def test_an_agent_works_and_submits(tmp_path: Path) -> None:
    environment = get_environment(
        {"environment_class": CLASS, "image": "base", "cwd": "/srv", "env": {"PAGER": "cat"}}
    )
    result, agent = run_agent(
        environment,
        "printf 'def f():\\n    return 41\\n' > f.py",
        "sed -i s/41/42/ f.py && python3 -c 'import f; print(f.f())'",
        "cd /tmp; exit 3",
        "pwd; echo $PAGER",
        f"{SUBMIT}; cat f.py",
    )
    assert result == {
        "exit_status": "Submitted",
        "submission": "def f():\n    return 42\n",
    }
    seen = [m["content"] for m in agent.messages if m["role"] == "user"]
    assert "<returncode>0</returncode>\n<output>\n42\n</output>" in seen[2]
    assert "<returncode>3</returncode>" in seen[3]
    assert "/srv\ncat\n" in seen[4]
    saved = agent.save(tmp_path / "trajectory.json")
    assert saved["info"]["config"]["environment_type"] == CLASS
    environment.cleanup()


def test_agents_at_once_have_sandboxes_of_their_own() -> None:
    def work(number: int) -> str:
        with VenusEnvironment() as environment:
            commands = [f"echo {number} >> /root/n"] * 3 + [f"{SUBMIT}; cat /root/n; id -u"]
            return str(run_agent(environment, *commands)[0]["submission"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [f"{n}\n{n}\n{n}\n0\n" for n in range(16)]


def test_both_streams_keep_their_order(venus: VenusEnvironment) -> None:
    command = "for n in 1 2 3; do echo out $n; echo err $n >&2; done"
    assert venus.execute({"command": command}) == {
        "output": "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n",
        "returncode": 0,
        "exception_info": "",
    }


def test_output_that_is_no_text(venus: VenusEnvironment) -> None:
    assert venus.execute({"command": r"printf 'a\377b'"})["output"] == "a\ufffdb"


def test_a_timeout_kills_all_and_keeps_what_was_written(venus: VenusEnvironment) -> None:
    command = "echo begun; setsid sleep 1000 & sleep 1000"
    output = venus.execute({"command": command}, timeout=1)
    assert (output["output"], output["returncode"]) == ("begun\n", -1)
    assert "killed after its timeout of 1 s" in output["exception_info"]
    assert output["extra"]["exception_type"] == "CommandTimeout"
    gone = "while pgrep sleep; do :; done"
    assert venus.execute({"command": gone})["returncode"] == 0


def test_a_command_that_cannot_start(venus: VenusEnvironment) -> None:
    output = venus.execute({"command": "true"}, "/no/such/directory")
    assert output["returncode"] == -1
    assert "the working directory cannot be entered" in output["exception_info"]


def test_out_of_memory_is_said() -> None:
    with VenusEnvironment(memory_bytes=64 << 20) as environment:
        output = environment.execute({"command": "exec python3 -c 'b\"x\" * (1 << 30)'"})
    assert (output["returncode"], output["exception_info"]) == (137, "killed: out of memory")


def test_output_is_bounded() -> None:
    with VenusEnvironment(max_output_bytes=10) as environment:
        output = environment.execute({"command": "seq 1000"})
    assert output["output"] == "1\n2\n3\n4\n5\n\n[cut after 10 bytes]\n"


def test_users_directories_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED", "yes")
    monkeypatch.setenv("OVERRIDDEN", "no")
    with VenusEnvironment(
        user="nobody",
        cwd="/usr",
        env={"OVERRIDDEN": "here"},
        forward_env=["FORWARDED", "OVERRIDDEN", "NOT_SET"],
        interpreter=["sh", "-c"],
    ) as environment:
        command = "id -u; pwd; echo $FORWARDED $OVERRIDDEN $NOT_SET; echo $0"
        output = environment.execute({"command": command})
        assert output["output"] == "65534\n/usr\nyes here\nsh\n"
        assert environment.execute({"command": "pwd"}, "/etc")["output"] == "/etc\n"


def test_a_sandbox_that_is_gone_ends_the_run(venus: VenusEnvironment) -> None:
    Sandbox.connect(venus.sandbox_id).kill()
    with pytest.raises(Exception, match=venus.sandbox_id):
        run_agent(venus, "true")


def test_a_sandbox_that_ends_under_a_command(venus: VenusEnvironment) -> None:
    venus.execute({"command": "mkfifo /root/pipe"})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(venus.execute, {"command": "echo > /root/pipe; sleep 1000"})
        venus.execute({"command": "cat /root/pipe"})
        Sandbox.connect(venus.sandbox_id).kill()
        with pytest.raises(SandboxGone):
            running.result()


def test_an_environment_that_is_forgotten_leaves_no_sandbox() -> None:
    environment = VenusEnvironment()
    sandbox_id = environment.sandbox_id
    del environment
    gc.collect()
    assert sandbox_id not in [info.id for info in Sandbox.list()]


def test_an_interrupted_program_leaves_no_sandbox() -> None:
    program = (
        "import os, signal\n"
        "from sandboxd.providers.mini_swe_agent import VenusEnvironment\n"
        "environment = VenusEnvironment()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert b"KeyboardInterrupt" in done.stderr
    assert Sandbox.list() == []


def test_misspelt_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        VenusEnvironment(memory="1G")
