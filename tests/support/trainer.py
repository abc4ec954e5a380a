"""A trainer that may be killed at any instant.

    python -m tests.support.trainer DIRECTORY STEPS [PLACE:N]

Its checkpoint is a file with the version and the keys of all groups that it was trained on. It
kills itself when it gets to PLACE for the N-th time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.support.engines import Fleet
from venusrl.engine.journal import Journal
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig

BATCH, IN_FLIGHT, SIZE, BOUND = 2, 5, 3, 2


class Trainer:
    def __init__(self, place: Path, die: str | None) -> None:
        self.checkpoint, self.journal_path = place / "checkpoint", place / "journal"
        self.die = die
        self.passed: Counter[str] = Counter()
        self.random = random.Random(1)

    def pass_by(self, place: str) -> None:
        self.passed[place] += 1
        if self.die == f"{place}:{self.passed[place]}":
            os.kill(os.getpid(), signal.SIGKILL)

    def load(self) -> tuple[int, list[str]]:
        if not self.checkpoint.exists():
            return 0, []
        found = json.loads(self.checkpoint.read_text())
        return found["version"], found["trained"]

    def save(self, version: int, trained: list[str]) -> None:
        fresh = self.checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps({"version": version, "trained": trained}))
        fresh.replace(self.checkpoint)

    async def episode(self, handle: Rollout, key: str) -> None:
        if handle.member.record is not None:
            return
        context = [1]
        for _ in range(self.random.randrange(1, 4)):
            turn = await handle.generate(context, max_tokens=2, stop_token_ids=[])
            context += turn.token_ids
            self.pass_by("turn")
        handle.finish(json.dumps({"key": key, "versions": turn.versions}))
        self.pass_by("finish")

    async def run(self, steps: int) -> None:
        version, trained = self.load()
        journal = Journal.open(self.journal_path, version)
        config = RouterConfig(
            2, Capacity(10_000, 8), batch_groups=BATCH, max_staleness=BOUND, pause_s=0.0
        )
        router = await Router.start(config, Fleet(), version=version, journal=journal)
        if version:
            await router.push_weights(self.checkpoint, version)
        episodes = []
        for group, handles in router.restored():
            begun_at = int(group.key.split()[1])
            assert group.version == min(begun_at, version), "a group is younger than it was"
            episodes += [asyncio.create_task(self.episode(h, group.key)) for h in handles]
        while version < steps:
            while len(router.rollouts.groups) < IN_FLIGHT:
                key = f"{journal.dispatched} {version}"
                handles = router.dispatch(1, SIZE, key)
                self.pass_by("dispatch")
                episodes += [asyncio.create_task(self.episode(h, key)) for h in handles]
            groups = await router.batch()
            for group in groups:
                assert version - group.version <= BOUND, "the bound of staleness is broken"
                for member in group.members:
                    assert member.record is not None
                    record = json.loads(member.record)
                    assert record["key"] == group.key, "an episode of another group"
                    assert max(record["versions"]) <= version, "tokens of weights that are lost"
            trained += [group.key for group in groups]
            self.pass_by("train")
            router.retire(groups)
            self.pass_by("retire")
            version += 1
            self.save(version, trained)
            self.pass_by("save")
            if version % 2:
                router.saved(version)
            await router.push_weights(self.checkpoint, version)
            self.pass_by("push")
        for task in episodes:
            task.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
        await router.close()
        journal.close()


if __name__ == "__main__":
    death = sys.argv[3] if len(sys.argv) > 3 else None
    asyncio.run(Trainer(Path(sys.argv[1]), death).run(int(sys.argv[2])))
