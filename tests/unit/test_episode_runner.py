"""The episode loop with a scripted policy and a scripted sandbox: no vLLM, no daemon."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from sandboxd.client import ExitReason
from sandboxd.errors import ExecFailed, SandboxGone, VenusError
from venusrl.engine.generation import EngineError, FinishReason, Generation
from venusrl.episode.record import Episode, Outcome, SandboxTimes
from venusrl.episode.rollout import Job, roll_out
from venusrl.episode.runner import EpisodeConfig, EpisodeRunner
from venusrl.episode.sandbox import CommandOutcome, SandboxFailure
from venusrl.tasks.task import Task

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]

END, OBS, ACT = 1000, 1001, 1002


class Characters:
    """One token per character."""

    stop_token_ids = (END,)

    def start(self, prompt: str) -> list[int]:
        return [*map(ord, prompt), ACT]

    def observe(self, observation: str | bytes) -> list[int]:
        data = observation.encode() if isinstance(observation, str) else observation
        return [OBS, *data, ACT]

    def command(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token < END)


@dataclass
class Scripted:
    """A policy that says ``words`` in turn; each token's logprob encodes where it stood."""

    words: list[str]
    version: int = 7
    prompts: list[list[int]] = field(default_factory=list)
    before: Callable[[], "asyncio.Future[None] | None"] = lambda: None

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
    ) -> Generation:
        waiting = self.before()
        if waiting is not None:
            await waiting
        self.prompts.append(list(token_ids))
        produced = [*map(ord, self.words.pop(0)), END]
        reason = FinishReason.STOP
        if len(produced) > max_tokens:
            produced, reason = produced[:max_tokens], FinishReason.LENGTH
        position = len(token_ids)
        return Generation(
            produced,
            [-float(position + index) for index in range(len(produced))],
            [self.version] * len(produced),
            reason,
        )


@dataclass
class FakeSandbox:
    """Fails with ``error`` at the operation named ``fails_at``."""

    times: SandboxTimes
    fails_at: str | None = None
    error: Exception | None = None
    output: bytes = b"ok\n"
    ran: list[str] = field(default_factory=list)
    killed: int = 0
    hang: str | None = None

    async def _reach(self, operation: str) -> None:
        if self.hang == operation:
            await asyncio.Event().wait()
        if self.fails_at == operation and self.error is not None:
            raise self.error

    async def prepare(self, script: str) -> None:
        await self._reach("prepare")

    async def run(self, command: str, *, max_output_bytes: int) -> CommandOutcome:
        await self._reach("run")
        self.ran.append(command)
        return CommandOutcome(self.output, len(self.output), ExitReason.EXITED, 0)

    async def verify(self, script: str) -> bool:
        await self._reach("verify")
        return self.ran[-1:] == ["right"]

    async def kill(self) -> None:
        self.killed += 1
        await self._reach("kill")


@dataclass
class FakeSandboxes:
    settings: dict[str, object] = field(default_factory=dict)
    create_error: Exception | None = None
    made: list[FakeSandbox] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    trajectories: list[str] = field(default_factory=list)

    async def create(
        self, times: SandboxTimes, *, group: str, trajectory: str, siblings: int
    ) -> FakeSandbox:
        self.asked.append((group, siblings))
        self.trajectories.append(trajectory)
        if self.create_error is not None:
            raise self.create_error
        self.made.append(FakeSandbox(times, **self.settings))  # type: ignore[arg-type]
        return self.made[-1]


def task(max_turns: int = 2) -> Task:
    return Task("t-1", "create", "train", "do", max_turns, setup="true", verify="true")


def play(
    words: list[str],
    sandboxes: FakeSandboxes | None = None,
    *,
    max_turns: int = 2,
    config: EpisodeConfig | None = None,
) -> tuple[Episode, Scripted, FakeSandboxes]:
    policy = Scripted(words)
    sandboxes = sandboxes or FakeSandboxes()
    runner = EpisodeRunner(policy, Characters(), sandboxes, config or EpisodeConfig())
    episode = asyncio.run(runner.run(task(max_turns), group="g", temperature=1.0))
    return episode, policy, sandboxes


def test_tokens_are_kept_as_produced_and_the_observation_is_not_trained_on() -> None:
    episode, policy, sandboxes = play(["look", "right"])
    assert episode.outcome is Outcome.SOLVED
    first = [*map(ord, "do"), ACT]
    second = [*first, *map(ord, "look"), END, OBS, *b"ok\n", ACT]
    assert policy.prompts == [first, second]
    assert episode.token_ids == [*second, *map(ord, "right"), END]
    assert episode.loss_mask == [0] * 3 + [1] * 5 + [0] * 5 + [1] * 6
    # The scripted logprob of a token is minus its position: nothing was shifted or recomputed.
    for position, trained in enumerate(episode.loss_mask):
        assert episode.logprobs[position] == (-float(position) if trained else 0.0)
        assert episode.versions[position] == (7 if trained else 0)
    assert sandboxes.made[0].ran == ["look", "right"]
    assert sandboxes.made[0].killed == 1
    sample = episode.sample()
    assert (sample.reward, sample.group) == (1.0, "g")


def test_the_last_turn_is_followed_by_no_observation() -> None:
    episode, policy, _ = play(["wrong", "right"], max_turns=1)
    assert episode.outcome is Outcome.UNSOLVED
    assert len(policy.prompts) == 1
    assert episode.token_ids[-1] == END


def test_an_empty_command_ends_the_episode_and_the_state_is_still_judged() -> None:
    episode, policy, sandboxes = play(["right", "", "never"], max_turns=3)
    assert episode.outcome is Outcome.SOLVED
    assert len(policy.prompts) == 2
    assert sandboxes.made[0].ran == ["right"]


def test_a_malformed_action_runs_nothing_and_is_told() -> None:
    episode, _, sandboxes = play(["a\nb", "right"])
    assert episode.outcome is Outcome.SOLVED
    assert sandboxes.made[0].ran == ["right"]
    assert episode.turns[0].observation == "error: more than one line\n"
    assert not episode.turns[0].ran


def test_a_turn_that_does_not_end_is_closed_by_a_token_that_is_not_trained_on() -> None:
    config = EpisodeConfig(max_command_tokens=8)
    episode, _, sandboxes = play(["much too long", "right"], config=config)
    place = 3 + 8
    assert episode.token_ids[place] == END
    assert episode.loss_mask[3 : place + 1] == [1] * 8 + [0]
    assert sandboxes.made[0].ran == ["right"]


def test_a_command_that_cannot_start_is_the_policys_problem() -> None:
    error = ExecFailed("could not start", cause="step exec: ENOENT")
    episode, _, _ = play(["x", "y"], FakeSandboxes({"fails_at": "run", "error": error}))
    assert episode.outcome is Outcome.UNSOLVED
    assert "could not start: step exec" in episode.turns[0].observation


@pytest.mark.parametrize("operation", ["prepare", "run", "verify"])
@pytest.mark.parametrize(
    "error", [SandboxGone("it is gone"), SandboxFailure("the verifier ended with 2")]
)
def test_a_broken_sandbox_makes_failed_data(operation: str, error: Exception) -> None:
    sandboxes = FakeSandboxes({"fails_at": operation, "error": error})
    episode, _, _ = play(["x", "right"], sandboxes)
    assert episode.outcome is Outcome.FAILED
    assert episode.failure is not None
    assert str(error) in episode.failure
    assert sandboxes.made[0].killed == 1
    with pytest.raises(ValueError, match="the episode failed"):
        _ = episode.reward


def test_a_sandbox_that_cannot_be_made_is_failed_data() -> None:
    episode, _, _ = play(["x"], FakeSandboxes(create_error=VenusError("no storage")))
    assert episode.outcome is Outcome.FAILED
    assert "no storage" in (episode.failure or "")


@pytest.mark.parametrize("operation", ["prepare", "run", "verify"])
def test_a_hanging_sandbox_ends_with_the_deadline(operation: str) -> None:
    sandboxes = FakeSandboxes({"hang": operation})
    episode, _, _ = play(["x", "y"], sandboxes, config=EpisodeConfig(deadline_s=0.05))
    assert episode.outcome is Outcome.FAILED
    assert "deadline" in (episode.failure or "")
    assert sandboxes.made[0].killed == 1


def test_a_kill_that_hangs_or_fails_does_not_hold_the_episode_up() -> None:
    config = EpisodeConfig(kill_timeout_s=0.05)
    for settings in ({"hang": "kill"}, {"fails_at": "kill", "error": VenusError("no")}):
        episode, _, _ = play(["right"], FakeSandboxes(dict(settings)), max_turns=1, config=config)
        assert episode.outcome is Outcome.SOLVED


def test_the_context_limit_ends_an_episode_before_the_engine_would_refuse() -> None:
    config = EpisodeConfig(context_tokens=40, max_command_tokens=20)
    sandboxes = FakeSandboxes({"output": b"o" * 30})
    episode, policy, _ = play(["look", "right"], sandboxes, config=config)
    assert len(policy.prompts) == 1
    assert episode.outcome is Outcome.UNSOLVED


def test_the_sandbox_is_made_while_the_first_command_is_written() -> None:
    async def scenario() -> None:
        sandboxes = FakeSandboxes()
        made = asyncio.Event()

        class Waiting(Scripted):
            async def generate(self, *args: object, **kwargs: object) -> Generation:
                # Would wait for ever if the sandbox were made only afterwards.
                await made.wait()
                return await super().generate(*args, **kwargs)  # type: ignore[arg-type]

        class Signalling(FakeSandboxes):
            async def create(
                self, times: SandboxTimes, *, group: str, trajectory: str, siblings: int
            ) -> FakeSandbox:
                made.set()
                return await super().create(
                    times, group=group, trajectory=trajectory, siblings=siblings
                )

        runner = EpisodeRunner(Waiting(["right"]), Characters(), Signalling(), EpisodeConfig())
        episode = await runner.run(task(1), group="g", temperature=1.0)
        assert episode.outcome is Outcome.SOLVED
        assert not sandboxes.made

    asyncio.run(scenario())


class DeadEngine(Scripted):
    async def generate(self, *args: object, **kwargs: object) -> Generation:
        await asyncio.sleep(0)
        raise EngineError("engine died")


def test_a_dead_engine_ends_the_run_and_removes_the_sandboxes() -> None:
    sandboxes = FakeSandboxes()
    runner = EpisodeRunner(DeadEngine([]), Characters(), sandboxes, EpisodeConfig())
    with pytest.raises(EngineError):
        asyncio.run(roll_out(runner, [Job(task(), "g")] * 5, concurrency=3))
    assert all(sandbox.killed == 1 for sandbox in sandboxes.made)


class Counting:
    """Records how many episodes run at once; each lasts until as many as may run are running."""

    def __init__(self, limit: int) -> None:
        self.running = 0
        self.most = 0
        self._barrier = asyncio.Barrier(limit)

    async def run(self, task: Task, *, group: str, temperature: float, siblings: int) -> Episode:
        self.running += 1
        self.most = max(self.most, self.running)
        await self._barrier.wait()
        self.running -= 1
        return Episode(
            task.task_id, task.family, group, "tr-1", task.prompt, Outcome.SOLVED, None, [], [],
            [], [], [], SandboxTimes(), 0.0, 0.0,
        )  # fmt: skip


def test_rollouts_are_bounded_ordered_and_each_told_once() -> None:
    async def scenario() -> None:
        runner = Counting(3)
        told: list[str] = []
        jobs = [Job(task(), f"g{number}") for number in range(9)]
        episodes = await roll_out(
            runner, jobs, concurrency=3, on_episode=lambda episode: told.append(episode.group)
        )
        assert [episode.group for episode in episodes] == [job.group for job in jobs]
        assert sorted(told) == sorted(job.group for job in jobs)
        assert runner.most == 3

    asyncio.run(scenario())


def test_a_sandbox_is_asked_for_with_how_many_samples_share_its_preparation() -> None:
    sandboxes = FakeSandboxes()
    runner = EpisodeRunner(Scripted(["right"] * 4), Characters(), sandboxes, EpisodeConfig())
    jobs = [Job(task(1), group) for group in ("a", "b", "a", "a")]
    episodes = asyncio.run(roll_out(runner, jobs, concurrency=1))
    assert sandboxes.asked == [("a", 3), ("b", 1), ("a", 3), ("a", 3)]
    assert sandboxes.trajectories == [each.trajectory_id for each in episodes]
    assert len(set(sandboxes.trajectories)) == len(jobs)
