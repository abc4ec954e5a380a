"""Templates from recipes: built once, warm, and all or nothing."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import BuildFailed, ForkFailed, InvalidRequest, NotFound
from tests.support.daemon import DaemonProcess

TOOL = "#!/bin/sh\necho $WHO"
WARM = "while :; do echo $((n=n+1)) > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.05; done"


def content(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_everything_a_recipe_says_is_in_each_fork(daemon: DaemonProcess) -> None:
    recipe = {
        "files": [
            {"path": "/srv/a/tool", "content": content("#!/bin/sh\necho $WHO"), "mode": 0o755}
        ],
        "env": {"WHO": "tool"},
        "cwd": "/srv/a",
        "limits": {"memory_bytes": 200 << 20},
        "setup": [{"command": "./tool > made"}, {"command": ["sh", "-c", "echo 2 >> made"]}],
        "warm": [{"command": WARM, "ready": "test -e /tmp/n"}],
        "on_fork": {"command": "cat /run/venus/generation > /srv/mine"},
    }
    template = Template.build(recipe, {"x": "y"}, socket=daemon.socket)
    try:
        assert template.info.recipe and template.info.labels == {"x": "y"}
        generations = set()
        for fork in template.fork(2):
            with fork:
                assert fork.info.limits.memory_bytes == 200 << 20
                assert fork.commands.run("cat made; ./tool").stdout == "tool\n2\ntool\n"
                assert int(fork.commands.run("cat /tmp/n").stdout) > 0
                assert [each.running for each in fork.commands.list()] == [True]
                mine = fork.files.read("/srv/mine")
                assert mine == f"{fork.info.generation}\n"
                generations.add(mine)
        assert len(generations) == 2
        # A recipe can stand on a template.
        above = {"template": template.template_id, "setup": [{"command": "echo 3 >> made"}]}
        second = Template.build(above, socket=daemon.socket)
        with Sandbox.create(template=second, socket=daemon.socket) as fork:
            assert fork.commands.run("cat made; ./tool").stdout == "tool\n2\n3\ntool\n"
            assert fork.commands.list()[0].running
        assert second.info.parent == template.template_id
        second.remove()
    finally:
        template.remove()


def test_one_recipe_is_built_once(daemon: DaemonProcess) -> None:
    recipe = {"setup": [{"command": "cat /proc/sys/kernel/random/uuid > /root/which; sleep 0.3"}]}
    before = Daemon(daemon.socket).info().counters["snapshots"]
    made: list[Template] = []

    def build() -> None:
        made.append(Template.build(recipe, socket=daemon.socket))

    threads = [threading.Thread(target=build) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.append(Template.build({**recipe, "env": {}}, {"any": "label"}, socket=daemon.socket))
    assert len({each.template_id for each in made}) == 1
    assert Daemon(daemon.socket).info().counters["snapshots"] == before + 1
    other = Template.build({**recipe, "env": {"A": "1"}}, socket=daemon.socket)
    assert other.template_id != made[0].template_id
    assert other.remove() and made[0].remove()
    again = Template.build(recipe, socket=daemon.socket)
    assert again.template_id != made[0].template_id
    again.remove()


@pytest.mark.parametrize(
    ("recipe", "step", "said"),
    [
        ({"setup": [{"command": "seq 1 100000; echo why >&2; exit 3"}]}, "setup command 0", "why"),
        ({"setup": [{"command": "sleep 9", "timeout_s": 0.2}]}, "setup command 0", "too long"),
        ({"warm": [{"command": "echo gone; exit 1", "ready": "false"}]}, "warm command 0", "gone"),
        (
            {"warm": [{"command": "sleep 9", "ready": "echo not; false", "timeout_s": 0.5}]},
            "warm command 0",
            "not",
        ),
        (
            {"warm": [{"command": "exit 0", "ready": "false", "timeout_s": 0.5}]},
            "warm command 0",
            "",
        ),
        ({"files": [{"path": "/proc/no/file", "content": ""}]}, "file /proc/no/file", "ENOENT"),
    ],
)
def test_a_failed_build_leaves_nothing_and_says_why(
    daemon: DaemonProcess, recipe: dict[str, object], step: str, said: str
) -> None:
    before = Sandbox.list(socket=daemon.socket)
    with pytest.raises(BuildFailed) as failed:
        Template.build(recipe, socket=daemon.socket)
    assert failed.value.object == step and said in failed.value.cause
    assert len(failed.value.cause) < 6000
    assert Sandbox.list(socket=daemon.socket) == before
    assert Template.list(socket=daemon.socket) == []


def test_a_failing_on_fork_fails_the_fork(daemon: DaemonProcess) -> None:
    recipe = {"on_fork": {"command": "echo no >&2; exit 7"}}
    template = Template.build(recipe, socket=daemon.socket)
    before = Sandbox.list(socket=daemon.socket)
    with pytest.raises(ForkFailed, match="exit code 7; it wrote: no"):
        template.fork(3)
    assert Sandbox.list(socket=daemon.socket) == before
    template.remove()


def test_what_is_no_recipe_is_refused(daemon: DaemonProcess) -> None:
    for recipe in (
        {"setup": [{"command": []}]},
        {"setup": [{"command": "x", "timeout_s": 0}]},
        {"image": "base", "template": "tp-0123456789abcdef"},
        {"warm": ["x"]},
        {"nonsense": 1},
    ):
        with pytest.raises(InvalidRequest):
            Template.build(recipe, socket=daemon.socket)
    with pytest.raises(NotFound):
        Template.build({"template": "tp-0123456789abcdef"}, socket=daemon.socket)


def test_command_line(daemon: DaemonProcess, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sandboxd.cli", "--socket", daemon.socket, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    (tmp_path / "tool").write_text("echo tool")
    (tmp_path / "recipe.toml").write_text(
        'cwd = "/srv"\n[[files]]\npath = "/srv/tool"\nsource = "tool"\nmode = "755"\n'
        '[[setup]]\ncommand = "sh tool > made"\n'
    )
    template = run("template", "build", str(tmp_path / "recipe.toml"), "-l", "by=hand")
    assert template in run("template", "ls") and run("template", "ls", "-q", "-l", "by=x") == ""
    forks = run("fork", template, "-n", "2", "--memory", "100M").split()
    assert len(forks) == 2
    assert run("exec", forks[0], "sh", "-c", "cat made; stat -c %a tool") == "tool\n755"
    [again] = run("fork", forks[0]).split()
    kept = run("snapshot", again)
    made = run("create", "--template", kept)
    assert run("exec", made, "cat", "made") == "tool"
    assert '"processes": 0' in run("template", "show", kept)
    run("rm", *forks, again, made)
    assert run("template", "rm", template, kept).split() == [template, kept]
    assert run("template", "ls", "-q") == ""
