"""Random forks, writes, snapshots and ends; memory and files of every sandbox match a model.

VENUS_SOAK_SECONDS (100), VENUS_SOAK_ROUNDS and VENUS_SOAK_SEED say how long and which. Every round
is a few operations on different sandboxes at the same time. The page pool is small, so that
templates are evicted; now and then the daemon is killed.
"""

from __future__ import annotations

import gc
import io
import os
import random
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, Template
from sandboxd.errors import LimitExceeded, NotFound
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import footprint, meminfo_kib, template_footprint
from tests.support.soak_model import MEMORY_DIRECTORY, Model

SECONDS = float(os.environ.get("VENUS_SOAK_SECONDS", "100"))
ROUNDS = int(os.environ.get("VENUS_SOAK_ROUNDS", "1000000"))
SEED = int(os.environ.get("VENUS_SOAK_SEED", str(random.SystemRandom().getrandbits(32))))
AT_ONCE, MAX_LIVE, MAX_TEMPLATES, MAX_LAYERS = 3, 10, 10, 12
POOL_BYTES = 24 << 20
SOURCE = Path(__file__).parent / "programs" / "soaker.c"
PLACE = "/root/soak"
WEIGHTS = {
    "write": 50, "verify": 8, "fork": 10, "snapshot": 10, "fork template": 12,
    "kill": 8, "remove template": 3, "restart": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def cramped(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon with little room for templates."""
    process = DaemonProcess(
        f"venus-s{os.getpid()}",
        tmp_path_factory.mktemp("venus"),
        {"pool_size_bytes": str(POOL_BYTES), "max_layers": str(MAX_LAYERS)},
    )
    with serving(process, base_image_tar):
        yield process


@dataclass
class Live:
    """A sandbox with the program, and what it should hold."""

    sandbox: Sandbox
    exec_id: int
    model: Model
    sequence: int = 0
    template: str = ""
    history: tuple[str, ...] = ()
    """What was done to it and to what it comes from, for whoever reads a failure."""

    def ask(self, command: str) -> None:
        self.sequence += 1
        self.note(command)
        self.sandbox.commands.send_stdin(self.exec_id, f"{self.sequence} {command}\n".encode())
        head = f"{self.sequence} ".encode()
        found: list[bytes] = []

        def answered() -> bool:
            lines = self.sandbox.commands.output(self.exec_id).splitlines(keepends=True)
            found[:] = [each for each in lines if each.startswith(head) and each.endswith(b"\n")]
            return bool(found)

        eventually(answered, f"no answer to {command}", patience_s=60)
        assert found == [head + b"ok\n"], (command, found)

    def note(self, what: str) -> None:
        self.history = (*self.history, what)

    def write(self, commands: list[str]) -> None:
        for command in commands:
            self.ask(command)

    def forked(self, sandbox: Sandbox, template: str) -> Live:
        history = (*self.history, f"{sandbox.sandbox_id} of {self.sandbox.sandbox_id} {template}")
        return Live(sandbox, self.exec_id, self.model.fork(), self.sequence, template, history)

    def verify(self) -> None:
        for who in "pc":
            dump = f"/dev/shm/dump-{who}"
            self.ask(f"{who} Z {dump}")
            seen, expected = self.sandbox.files.read(dump, format="bytes"), self.model.memory(who)
            self.sandbox.files.remove(dump)
            if seen != expected:
                self.fail(f"memory of {who}: {difference(bytes(seen), expected)}")
        files = self.files()
        if set(files) != set(self.model.files):
            self.fail(f"{sorted(files)} instead of {sorted(self.model.files)}")
        for path, content in files.items():
            if content != self.model.files[path]:
                self.fail(f"{path}: {difference(content, bytes(self.model.files[path]))}")

    def fail(self, what: str) -> None:
        print("\n".join(self.history))
        pytest.fail(f"{self.sandbox.sandbox_id}: {what}")

    def files(self) -> dict[str, bytes]:
        """By the path that the program has for them."""
        names = [PLACE.lstrip("/"), MEMORY_DIRECTORY.lstrip("/")]
        stream = self.sandbox.commands.run(["tar", "-c", "-C", "/", *names]).stdout_bytes
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
            for member in tar:
                if member.isdir():
                    continue
                file = tar.extractfile(member)
                assert file is not None, member
                found[f"/{member.name}".removeprefix(f"{PLACE}/")] = file.read()
        return found


def difference(seen: bytes, expected: bytes) -> str:
    if len(seen) != len(expected):
        return f"{len(seen)} bytes instead of {len(expected)}"
    at = [
        page for page in range(0, len(seen), 4096) if seen[page:][:4096] != expected[page:][:4096]
    ]
    return f"{len(at)} pages differ, the first at {at[0]:#x} of {len(seen):#x}"


@dataclass
class Soak:
    """Chooses and carries out; what it chooses depends on the seed and on what is there."""

    daemon: DaemonProcess
    dice: random.Random
    live: list[Live] = field(default_factory=list)
    templates: dict[str, Live] = field(default_factory=dict)
    """By id: what a fork of each starts from. (Its `sandbox` is the original.)"""
    done: Counter[str] = field(default_factory=Counter)

    def begin(self, program: Path) -> None:
        with Sandbox.create(socket=self.daemon.socket) as first:
            first.files.write("/soaker", program.read_bytes(), mode=0o755)
            first.commands.run(["mkdir", "-p", PLACE, MEMORY_DIRECTORY])
            handle = first.commands.run(["/soaker", PLACE], True, stdin=True)
            assert next(iter(handle)).data == b"0 ok\n"
            template = first.snapshot()
        origin = Live(first, handle.exec_id, Model(), 0)
        self.templates[template.template_id] = origin
        self.live += self.fork_template(template.template_id)

    # -- operations: each on a sandbox or template that no other of the round touches -------------

    def write(self, one: Live) -> list[Live]:
        commands = []
        for _ in range(self.dice.randint(1, 8)):
            commands.append(one.model.draw(self.dice))
            one.model.apply(commands[-1])
        one.write(commands)
        return []

    def verify(self, one: Live) -> list[Live]:
        one.verify()
        return []

    def fork(self, one: Live) -> list[Live]:
        one.note("fork")
        try:
            return [one.forked(each, "") for each in one.sandbox.fork(self.dice.randint(1, 2))]
        except LimitExceeded:
            self.done["no room"] += 1
            return []

    def snapshot(self, one: Live) -> list[Live]:
        one.note("snapshot")
        try:
            template = one.sandbox.snapshot()
        except LimitExceeded:
            self.done["no room"] += 1
        else:
            self.templates[template.template_id] = one.forked(one.sandbox, "")
            template.close()
        return []

    def fork_template(self, template_id: str) -> list[Live]:
        origin = self.templates[template_id]
        try:
            template = Template.get(template_id, socket=self.daemon.socket)
            made = template.fork(self.dice.randint(1, 2))
        except NotFound:  # evicted
            self.done["evicted before"] += 1
            return []
        template.close()
        return [origin.forked(each, template_id) for each in made]

    def kill(self, one: Live) -> list[Live]:
        assert one.sandbox.kill()
        one.sandbox.close()
        self.live.remove(one)
        return []

    def remove_template(self, template_id: str) -> list[Live]:
        try:
            template = Template.get(template_id, socket=self.daemon.socket)
        except NotFound:
            return []
        template.remove()
        template.close()
        del self.templates[template_id]
        return []

    def restart(self) -> None:
        self.daemon.kill()
        self.daemon.start()

    # -- rounds ------------------------------------------------------------------------------------

    def choose(self) -> list[tuple[str, Live | str]]:
        chosen: list[tuple[str, Live | str]] = []
        sandboxes, templates = list(self.live), list(self.templates)
        self.dice.shuffle(sandboxes)
        self.dice.shuffle(templates)
        room = MAX_LIVE - len(self.live)
        for _ in range(AT_ONCE):
            [name] = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            if name in ("fork", "fork template"):
                room -= 2
                if room < 0:
                    name = "kill"
            if (name == "kill" and len(self.live) < 3) or name == "restart":
                name = "write"
            if name == "snapshot" and len(self.templates) >= MAX_TEMPLATES:
                name = "remove template"
            of_template = name.endswith("template")
            if of_template and templates:
                chosen.append((name, templates.pop()))
            elif not of_template and sandboxes:
                chosen.append((name, sandboxes.pop()))
        return chosen

    def round(self, pool: ThreadPoolExecutor) -> None:
        if not self.templates and not self.live:
            raise AssertionError("nothing is left to go on from")
        used = {each.template for each in self.live}
        chosen = self.choose()
        # Its dice are rolled in one order, whatever the threads do.
        rolls = [self.dice.getrandbits(64) for _ in chosen]
        works = []
        for (name, what), roll in zip(chosen, rolls, strict=True):
            self.done[name] += 1
            actor = Soak(self.daemon, random.Random(roll), self.live, self.templates, self.done)
            works.append(pool.submit(getattr(actor, name.replace(" ", "_")), what))
        made = [each for work in works for each in work.result()]
        for each in made:
            each.verify()
        self.live += made
        self.forget_evicted(used)
        if self.dice.random() < WEIGHTS["restart"] / sum(WEIGHTS.values()):
            self.done["restart"] += 1
            self.restart()

    def forget_evicted(self, used: set[str]) -> None:
        listed = {each.id for each in Template.list(socket=self.daemon.socket)}
        for template_id in set(self.templates) - listed:
            # It had no fork before the round, or none afterwards.
            still_used = {each.template for each in self.live} & used
            assert template_id not in still_used, f"{template_id} was evicted and has forks"
            self.done["evicted"] += 1
            del self.templates[template_id]
        assert listed == set(self.templates)

    def end(self) -> None:
        for one in list(self.live):
            one.verify()
            self.kill(one)
        for template_id in list(self.templates):
            for one in self.fork_template(template_id):
                one.verify()
                one.sandbox.kill()
                one.sandbox.close()
            self.remove_template(template_id)


def everything(daemon: DaemonProcess) -> dict[str, object]:
    return {**footprint(daemon), **template_footprint(daemon)}


@pytest.mark.timeout(SECONDS + 300)
def test_all_sandboxes_hold_what_the_model_holds(cramped: DaemonProcess, tmp_path: Path) -> None:
    print(f"VENUS_SOAK_SEED={SEED}")
    program = tmp_path / "soaker"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["gcc", *flags, SOURCE, "-o", program], check=True)
    soak = Soak(cramped, random.Random(SEED))
    soak.begin(program)
    soak.end()
    soak.restart()
    gc.collect()
    before, shared_before = everything(cramped), meminfo_kib("Shmem")
    soak.begin(program)
    deadline = time.monotonic() + SECONDS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(ROUNDS):
            if time.monotonic() > deadline:
                break
            try:
                soak.round(pool)
            except BaseException:
                print(f"in round {number}; so far {dict(soak.done)}\n{cramped.log()}")
                raise
    print(f"{number} rounds: {dict(soak.done)}")
    soak.end()
    eventually(lambda: everything(cramped) == before, f"left: {everything(cramped)}, not {before}")
    # Others of the machine have shared memory, too.
    assert meminfo_kib("Shmem") - shared_before < 512 << 10
