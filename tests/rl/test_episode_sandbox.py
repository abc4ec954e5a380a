"""Episodes in real sandboxes, with a policy that says what it is told to."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandboxd.client import AsyncDaemon, AsyncSandbox, AsyncTemplate, Daemon
from tests.support.daemon import DaemonProcess
from venusrl.engine.generation import FinishReason, Generation
from venusrl.episode import (
    CommandCounter,
    DaemonSandboxes,
    Episode,
    EpisodeConfig,
    EpisodeRunner,
    Job,
    Outcome,
    SandboxSettings,
    Sharing,
    roll_out,
)
from venusrl.tasks import Task, demonstrate, generate

pytestmark = [pytest.mark.rl, pytest.mark.timeout(180)]

END = 0x110000


class Characters:
    stop_token_ids = (END,)

    def start(self, prompt: str) -> list[int]:
        return [1]

    def observe(self, observation: str | bytes) -> list[int]:
        return [1]

    def command(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token < END)


class Saying:
    """Says the given lines, one a turn; the number of the turn is read off the context."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
    ) -> Generation:
        turn = list(token_ids).count(END)
        ids = [*map(ord, self._lines[turn]), END]
        return Generation(ids, [0.0] * len(ids), [0] * len(ids), FinishReason.STOP)


def task(*, setup: str = "true", verify: str = "exit 0", max_turns: int = 1) -> Task:
    return Task("t", "create", "train", "p", max_turns, setup, verify)


def settings(daemon: DaemonProcess, **changes: float) -> SandboxSettings:
    return SandboxSettings(socket=daemon.socket, run_label="test-episodes", **changes)  # type: ignore[arg-type]


def play(
    daemon: DaemonProcess,
    task: Task,
    *lines: str,
    config: EpisodeConfig | None = None,
    **changes: float,
) -> Episode:
    async def scenario() -> Episode:
        sandboxes = DaemonSandboxes(settings(daemon, **changes), CommandCounter())
        runner = EpisodeRunner(Saying(*lines), Characters(), sandboxes, config or EpisodeConfig())
        episode = await runner.run(task, group="g", temperature=1.0)
        assert await sandboxes.sweep() == 0, "the episode left its sandbox"
        return episode

    return asyncio.run(scenario())


def observed(daemon: DaemonProcess, command: str, **changes: float) -> str:
    """What the policy sees of ``command``."""
    config = EpisodeConfig(max_command_characters=500)
    episode = play(daemon, task(max_turns=2), command, "", config=config, **changes)
    assert episode.failure is None
    return episode.turns[0].observation


def test_both_streams_are_shown_in_order_and_as_the_shell_itself_words_them(
    daemon: DaemonProcess,
) -> None:
    assert observed(daemon, "echo a; echo b >&2; echo c") == "a\nb\nc\n"
    assert observed(daemon, "missing-program") == "/bin/sh: 1: missing-program: not found\n"
    assert observed(daemon, "pwd") == "/root/work\n"
    assert "Syntax error" in observed(daemon, "echo (")


def test_input_is_empty_and_a_background_child_does_not_hold_the_turn(
    daemon: DaemonProcess,
) -> None:
    assert observed(daemon, "cat; sleep 60 & echo done") == "done\n"


def test_long_output_is_cut_and_marked(daemon: DaemonProcess) -> None:
    shown = observed(daemon, "seq 100000")
    assert len(shown) <= EpisodeConfig.observation_budget_bytes
    assert shown.startswith("1\n2\n")
    assert "bytes cut]" in shown


def test_a_command_that_never_ends_is_killed_and_told(daemon: DaemonProcess) -> None:
    shown = observed(daemon, "echo a; sleep 1000", command_timeout_s=0.5)
    assert shown == "a\nerror: the command took too long and was killed\n"


@pytest.mark.parametrize("crime", ["rm -rf /root/work", "kill -9 -1", "rm -rf /bin /usr/bin"])
def test_a_policy_that_wrecks_its_sandbox_has_simply_not_solved_the_task(
    daemon: DaemonProcess, crime: str
) -> None:
    episode = play(daemon, task(verify="exit 0" if "kill" not in crime else "exit 1"), crime)
    assert episode.outcome is Outcome.UNSOLVED


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (task(setup="echo no >&2; exit 3"), "exit code 3: no"),
        (task(verify="exit 2"), "verify in sandbox"),
        (task(verify="kill -9 $$"), "verify in sandbox"),
    ],
    ids=["setup", "verifier", "verifier killed"],
)
def test_a_broken_task_is_failed_data(daemon: DaemonProcess, broken: Task, said: str) -> None:
    episode = play(daemon, broken, "true")
    assert episode.outcome is Outcome.FAILED
    assert said in (episode.failure or "")


def test_perfect_demonstrations_solve_and_every_program_is_counted_as_the_daemon_does(
    daemon: DaemonProcess,
) -> None:
    import random

    tasks = generate("train", 3, 30)

    class Demonstrating(Saying):
        async def generate(self, token_ids: Sequence[int], **settings: object) -> Generation:
            steps = self.steps[token_ids[0]]
            self._lines = (*(step.command for step in steps), "")
            return await super().generate(token_ids, **settings)  # type: ignore[arg-type]

        steps = {  # noqa: RUF012
            number: demonstrate(one, random.Random(0), flawed=False).steps
            for number, one in enumerate(tasks)
        }

    class Numbered(Characters):
        def start(self, prompt: str) -> list[int]:
            return [[one.prompt for one in tasks].index(prompt)]

        def observe(self, observation: str | bytes) -> list[int]:
            return []

    async def scenario() -> None:
        counter = CommandCounter()
        sandboxes = DaemonSandboxes(settings(daemon), counter)
        runner = EpisodeRunner(Demonstrating(), Numbered(), sandboxes, EpisodeConfig())
        async with AsyncDaemon(daemon.socket) as client:
            before = (await client.info()).counters["execs_started"]
            episodes = await roll_out(runner, [Job(t, t.task_id) for t in tasks], concurrency=16)
            after = (await client.info()).counters["execs_started"]
        assert {e.task_id: e.failure for e in episodes if e.outcome is not Outcome.SOLVED} == {}
        assert counter.started == after - before
        assert counter.started >= 3 * len(tasks)
        assert await sandboxes.sweep() == 0

    asyncio.run(scenario())


def test_a_sandbox_is_traced_to_its_trajectory(daemon: DaemonProcess) -> None:
    async def scenario() -> list[Episode]:
        sandboxes = DaemonSandboxes(settings(daemon), CommandCounter())
        runner = EpisodeRunner(Saying("true", "true"), Characters(), sandboxes, EpisodeConfig())
        # Forks of one preparation, and one that has nobody to share it with.
        jobs = [Job(task(), group) for group in ("g-shared", "g-shared", "g-alone")]
        episodes = await roll_out(runner, jobs, concurrency=1)
        assert await sandboxes.sweep() == 0
        return episodes

    traced = set()
    with Daemon(daemon.socket) as client:
        for episode in asyncio.run(scenario()):
            labels = {"group": episode.group, "trajectory": episode.trajectory_id}
            with client.events(after=0, metadata=labels, wait=False) as events:
                told = [each for each in events if each.type != "missed"]
            [sandbox_id] = {each.sandbox for each in told}
            assert {"created", "killed"} <= {each.type for each in told}
            traced.add(sandbox_id)
    assert len(traced) == 3


def test_sweep_removes_this_runs_sandboxes_and_no_others(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        other = await AsyncSandbox.create(socket=daemon.socket, timeout=60)
        lost = await AsyncSandbox.create(
            socket=daemon.socket, timeout=60, metadata={"venusrl-run": "test-episodes"}
        )
        async with other:
            assert await DaemonSandboxes(settings(daemon), CommandCounter()).sweep() == 1
            assert await other.is_running()
            assert not await lost.is_running()
        await lost.close()

    asyncio.run(scenario())


def test_a_daemon_that_is_not_there_is_failed_data(tmp_path: Path) -> None:
    async def scenario() -> Episode:
        sandboxes = DaemonSandboxes(
            SandboxSettings(socket=str(tmp_path / "none.sock")), CommandCounter()
        )
        runner = EpisodeRunner(Saying("true"), Characters(), sandboxes, EpisodeConfig())
        return await runner.run(task(), group="g", temperature=1.0)

    episode = asyncio.run(scenario())
    assert episode.outcome is Outcome.FAILED
    assert "is sandboxd running?" in (episode.failure or "")


RANDOM = "head -c 16 /dev/urandom | od -An -tx1 > /root/work/drawn"
# A descriptor of a kind that no snapshot holds.
PIDFD = "python3 -c 'import os, time; f = os.pidfd_open(os.getpid()); time.sleep(60)' > /dev/null &"


def play_group(
    daemon: DaemonProcess, setup: str, *, size: int = 4, **changes: float
) -> tuple[list[Episode], Sharing, int]:
    """The samples of one prompt, what they shared, and how many programs ran."""

    async def scenario() -> tuple[list[Episode], Sharing, int]:
        counter = CommandCounter()
        sandboxes = DaemonSandboxes(settings(daemon, **changes), counter)
        runner = EpisodeRunner(
            Saying("cat drawn; echo x >> drawn", "cat drawn", ""),
            Characters(),
            sandboxes,
            EpisodeConfig(max_command_characters=500),
        )
        one = task(setup=setup, max_turns=3)
        episodes = await roll_out(runner, [Job(one, "g")] * size, concurrency=size)
        labels = {"venusrl-run": "test-episodes"}
        assert await AsyncTemplate.list(labels, socket=daemon.socket) == []
        assert await sandboxes.sweep() == 0
        return episodes, sandboxes.sharing, counter.started

    return asyncio.run(scenario())


def test_a_group_is_prepared_once_and_each_sample_is_alone_in_its_fork(
    daemon: DaemonProcess,
) -> None:
    episodes, sharing, programs = play_group(daemon, RANDOM)
    assert [each.failure for each in episodes] == [None] * 4
    assert [each.outcome for each in episodes] == [Outcome.SOLVED] * 4
    drawn = {each.turns[0].observation for each in episodes}
    assert len(drawn) == 1 and drawn != {""}
    for each in episodes:
        assert each.turns[1].observation == each.turns[0].observation + "x\n"
    assert (sharing.templates, sharing.forks) == (1, 4)
    assert programs == 1 + 4 * 3  # one setup; two commands and a verifier each


def test_preparing_each_anew_is_still_there(daemon: DaemonProcess) -> None:
    episodes, sharing, _ = play_group(daemon, RANDOM, prepare_once=False)
    assert [each.failure for each in episodes] == [None] * 4
    assert len({each.turns[0].observation for each in episodes}) == 4
    assert (sharing.templates, sharing.forks) == (0, 0)


def test_a_preparation_that_fails_fails_the_whole_group(daemon: DaemonProcess) -> None:
    episodes, sharing, programs = play_group(daemon, "echo why >&2; exit 9")
    assert [each.outcome for each in episodes] == [Outcome.FAILED] * 4
    failures = [each.failure or "" for each in episodes]
    assert all("why" in each for each in failures), failures
    assert (sharing.forks, programs) == (0, 1)


def test_what_cannot_be_captured_is_prepared_for_each(daemon: DaemonProcess) -> None:
    episodes, sharing, _ = play_group(daemon, f"{RANDOM}; {PIDFD} sleep 0.3")
    assert [each.failure for each in episodes] == [None] * 4
    assert [each.outcome for each in episodes] == [Outcome.SOLVED] * 4
    assert len({each.turns[0].observation for each in episodes}) == 4
    assert sharing.forks == 0
