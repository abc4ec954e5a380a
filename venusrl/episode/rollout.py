"""Runs many episodes at once, at most so many at a time, and hands each on exactly once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from venusrl.episode.record import Episode
from venusrl.tasks.task import Task


@dataclass(frozen=True)
class Job:
    task: Task
    group: str
    temperature: float = 1.0


class Runner(Protocol):
    async def run(
        self, task: Task, *, group: str, temperature: float, siblings: int
    ) -> Episode: ...


async def roll_out(
    runner: Runner,
    jobs: Sequence[Job],
    *,
    concurrency: int,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """The episodes of ``jobs``, in their order.

    The first exception (an engine failure, a cancellation) ends all the others, which remove
    their sandboxes before it is raised.
    """
    places = asyncio.Semaphore(concurrency)
    sizes = Counter(job.group for job in jobs)

    async def run(job: Job) -> Episode:
        async with places:
            episode = await runner.run(
                job.task,
                group=job.group,
                temperature=job.temperature,
                siblings=sizes[job.group],
            )
        if on_episode is not None:
            on_episode(episode)
        return episode

    tasks = [asyncio.create_task(run(job)) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
