"""What an episode leaves behind: data for training, for the report, and for people to read."""

import enum
from dataclasses import dataclass, field

from venusrl.train.sample import Sample


class Outcome(enum.Enum):
    """``FAILED`` is no reward of zero: nothing is known about how well the policy did."""

    SOLVED = "solved"
    UNSOLVED = "unsolved"
    FAILED = "failed"


@dataclass(frozen=True)
class Turn:
    """``ran`` is false where the text was no command; ``exit_code`` is None then."""

    text: str
    observation: str
    ran: bool
    exit_code: int | None


@dataclass
class SandboxTimes:
    """Seconds as the episode waited for them; None where it did not come to it."""

    # Waiting for a turn to ask for a sandbox, then the request itself.
    queue_s: float | None = None
    create_s: float | None = None
    setup_s: float | None = None
    verify_s: float | None = None
    kill_s: float | None = None
    commands_s: list[float] = field(default_factory=list)


@dataclass
class Episode:
    task_id: str
    family: str
    group: str
    # Label of its sandbox, by which the daemon's log and list find it.
    trajectory_id: str
    prompt: str
    outcome: Outcome
    failure: str | None
    turns: list[Turn]
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    times: SandboxTimes
    generate_s: float
    total_s: float

    @property
    def reward(self) -> float:
        """1 for a solved task, else 0. A failed episode has none."""
        if self.outcome is Outcome.FAILED:
            raise ValueError(f"reward of {self.task_id}: the episode failed: {self.failure}")
        return 1.0 if self.outcome is Outcome.SOLVED else 0.0

    @property
    def policy_tokens(self) -> int:
        return sum(self.loss_mask)

    def sample(self, reward: float | None = None) -> Sample:
        """For the trainer; ``reward`` replaces the episode's own."""
        return Sample(
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            versions=self.versions,
            reward=self.reward if reward is None else reward,
            group=self.group,
        )
