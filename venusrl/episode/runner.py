"""Runs one episode: generate a command, run it, show its output, until the end; then verify.

Every episode ends with a record, within its deadline. What the sandbox side does wrong (any
`VenusError`, a broken task, the deadline), or a router that gives it up, makes the record
*failed*; what the policy does wrong is an observation or an unsolved task. An engine that fails
ends the run: `EngineError` goes through.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sandboxd.errors import ExecFailed, VenusError
from venusrl.engine.generation import FinishReason, Generator, RolloutEnded
from venusrl.episode.action import Action, Command, Finish, Malformed, parse_action
from venusrl.episode.observation import render, render_error
from venusrl.episode.record import Episode, Outcome, SandboxTimes, Turn
from venusrl.episode.sandbox import EpisodeSandbox, SandboxFailure, SandboxSource
from venusrl.episode.trajectory import Trajectory
from venusrl.tasks.task import MAX_COMMAND_CHARACTERS, Task


class Conversation(Protocol):
    """How texts become the context around the policy's tokens (policy/conversation.py)."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def start(self, prompt: str) -> list[int]: ...

    def observe(self, observation: str | bytes) -> list[int]: ...

    def command(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class EpisodeConfig:
    max_command_tokens: int = 96
    max_command_characters: int = MAX_COMMAND_CHARACTERS
    observation_budget_bytes: int = 512
    # All tokens of a trajectory; at most the engine's max_model_len.
    context_tokens: int = 1024
    deadline_s: float = 300.0
    kill_timeout_s: float = 30.0


class EpisodeRunner:
    def __init__(
        self,
        generator: Generator,
        conversation: Conversation,
        sandboxes: SandboxSource,
        config: EpisodeConfig,
    ) -> None:
        self._generator = generator
        self._conversation = conversation
        self._sandboxes = sandboxes
        self._config = config

    async def run(
        self, task: Task, *, group: str, temperature: float, siblings: int = 1
    ) -> Episode:
        """``siblings``: how many episodes of the group there are, this one counted."""
        trajectory = Trajectory(self._conversation.start(task.prompt))
        attempt = _Attempt(task, temperature, trajectory, group, siblings)
        started = time.monotonic()
        outcome, failure = Outcome.FAILED, None
        try:
            async with asyncio.timeout(self._config.deadline_s):
                solved = await self._attempt(attempt)
            outcome = Outcome.SOLVED if solved else Outcome.UNSOLVED
        except TimeoutError:
            failure = f"the deadline of {self._config.deadline_s:g} s passed"
        except (VenusError, SandboxFailure, RolloutEnded) as error:
            failure = f"{type(error).__name__}: {error}"
        return Episode(
            task_id=task.task_id,
            family=task.family,
            group=group,
            trajectory_id=attempt.trajectory_id,
            prompt=task.prompt,
            outcome=outcome,
            failure=failure,
            turns=attempt.turns,
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.loss_mask,
            logprobs=trajectory.logprobs,
            versions=trajectory.versions,
            times=attempt.times,
            generate_s=attempt.generate_s,
            total_s=time.monotonic() - started,
        )

    async def _attempt(self, attempt: "_Attempt") -> bool:
        # The sandbox is made while the engine writes the first command.
        making = asyncio.create_task(self._make_sandbox(attempt))
        try:
            action = await self._next_action(attempt)
            sandbox = await making
            for turn in range(1, attempt.task.max_turns + 1):
                observation = await self._act(attempt, sandbox, action)
                if observation is None or turn == attempt.task.max_turns:
                    break
                context = self._conversation.observe(observation)
                room = self._config.context_tokens - self._config.max_command_tokens
                if len(attempt.trajectory) + len(context) > room:
                    break
                attempt.trajectory.add_context(context)
                action = await self._next_action(attempt)
            return await sandbox.verify(attempt.task.verify)
        finally:
            await _finish(self._remove_sandbox(making))

    async def _make_sandbox(self, attempt: "_Attempt") -> EpisodeSandbox:
        sandbox = await self._sandboxes.create(
            attempt.times,
            group=attempt.group,
            trajectory=attempt.trajectory_id,
            siblings=attempt.siblings,
        )
        try:
            await sandbox.prepare(attempt.task.setup)
        except BaseException:
            await _finish(self._kill(sandbox))
            raise
        return sandbox

    async def _remove_sandbox(self, making: "asyncio.Task[EpisodeSandbox]") -> None:
        """Leave nothing behind, whatever state the making is in."""
        if not making.done():
            making.cancel()
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await self._kill(making.result())

    async def _kill(self, sandbox: EpisodeSandbox) -> None:
        # Bounded, because it also runs after the deadline; time to live is the safety net.
        with contextlib.suppress(VenusError, TimeoutError):
            async with asyncio.timeout(self._config.kill_timeout_s):
                await sandbox.kill()

    async def _next_action(self, attempt: "_Attempt") -> Action:
        config = self._config
        started = time.monotonic()
        generation = await self._generator.generate(
            attempt.trajectory.token_ids,
            max_tokens=config.max_command_tokens,
            stop_token_ids=self._conversation.stop_token_ids,
            temperature=attempt.temperature,
        )
        attempt.generate_s += time.monotonic() - started
        attempt.trajectory.add_generation(generation)
        complete = generation.finish_reason is FinishReason.STOP
        if not complete:
            # The layout wants every turn closed; the policy did not choose this token.
            attempt.trajectory.add_context(self._conversation.stop_token_ids[:1])
        attempt.said = self._conversation.command(generation.token_ids)
        return parse_action(
            attempt.said, complete=complete, max_characters=config.max_command_characters
        )

    async def _act(
        self, attempt: "_Attempt", sandbox: EpisodeSandbox, action: Action
    ) -> bytes | None:
        """Carry out one action; None when it ends the episode."""
        match action:
            case Finish():
                attempt.turns.append(Turn(attempt.said, "", ran=False, exit_code=None))
                return None
            case Malformed(reason):
                return attempt.note(render_error(reason), ran=False)
            case Command(text):
                return await self._run(attempt, sandbox, text)

    async def _run(self, attempt: "_Attempt", sandbox: EpisodeSandbox, command: str) -> bytes:
        budget = self._config.observation_budget_bytes
        try:
            outcome = await sandbox.run(command, max_output_bytes=64 * budget)
        except ExecFailed as error:
            return attempt.note(render_error(f"the command could not start: {error.cause}"))
        observation = render(
            outcome.output,
            outcome.reason,
            budget_bytes=budget,
            total_bytes=outcome.total_bytes,
        )
        return attempt.note(observation, exit_code=outcome.exit_code)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Carry ``work`` to its end even if this task is cancelled meanwhile.

    Clean-up already runs because of one cancellation (the deadline, a failing sibling); a second
    one must not cut it short. The work bounds itself.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class _Attempt:
    """The state of one episode while it runs."""

    def __init__(
        self,
        task: Task,
        temperature: float,
        trajectory: Trajectory,
        group: str,
        siblings: int,
    ) -> None:
        self.task = task
        self.group = group
        self.trajectory_id = f"tr-{secrets.token_hex(8)}"
        self.siblings = siblings
        self.temperature = temperature
        self.trajectory = trajectory
        self.times = SandboxTimes()
        self.turns: list[Turn] = []
        self.generate_s = 0.0
        self.said = ""

    def note(self, observation: bytes, *, ran: bool = True, exit_code: int | None = None) -> bytes:
        text = observation.decode("utf-8", "replace")
        self.turns.append(Turn(self.said, text, ran=ran, exit_code=exit_code))
        return observation
