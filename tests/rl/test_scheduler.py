"""Our scheduler class in a real engine, beside vLLM's own: same tokens, whatever it interrupts.

Invariants are checked at every step of our engine: one that is broken ends it, and the test.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.random_model import VOCABULARY, random_model, random_tokens
from venusrl.engine import EngineConfig, VllmEngine
from venusrl.engine.shared_table import NOBODY, Claim
from venusrl.schedule.snapshot import Level
from venusrl.simulate.fitted import CPU_S, DECODED, PREFILLED, READ, STEP_WALL_S

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

BLOCK = 32
CONTEXT = 512
# One context of the greatest length, and little more; one block is vLLM's own.
BLOCKS = CONTEXT // BLOCK + 6
SLOTS = 128
GROUP = 4


@dataclass
class Script:
    """A trajectory whose lengths are fixed: (generated, observed) by turn."""

    prompt: list[int]
    turns: list[tuple[int, int]]
    seed: int


def scripts(count: int, turns: int, seed: int) -> list[Script]:
    chance = random.Random(seed)
    found = []
    for number in range(count):
        if number % GROUP == 0:
            prompt = random_tokens(chance.randrange(1 << 32), 44)
        lengths = [(chance.randrange(8, 28), chance.randrange(6, 20)) for _ in range(turns)]
        found.append(Script(prompt, lengths, seed=seed * 1000 + number))
    return found


@dataclass
class Engines:
    runner: asyncio.Runner
    stock: VllmEngine
    ours: VllmEngine
    desk: Desk


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    place = tmp_path_factory.mktemp("scheduler")
    random_model(place / "model", 3, tied=False, positions=CONTEXT)
    desk = Desk.open(place / "table", SLOTS)
    plain = {
        "max_model_len": CONTEXT,
        "max_concurrency": 12,
        "kv_blocks": BLOCKS,
        "block_tokens": BLOCK,
        "step_tokens": 96,
        "threads": 1,
        "log_steps": True,
    }
    options = {
        "table": str(desk.table.path),
        "check_every": 1,
        "prefill_tokens": 40,
        "wait_factor": 0.0,
    }

    async def start() -> tuple[VllmEngine, VllmEngine]:
        return await asyncio.gather(
            VllmEngine.start(place / "model", EngineConfig(**plain)),
            VllmEngine.start(place / "model", EngineConfig(**plain, scheduler=options)),
        )

    with asyncio.Runner() as runner:
        stock, ours = runner.run(start())
        try:
            yield Engines(runner, stock, ours, desk)
        finally:

            async def close() -> None:
                stock.close()
                ours.close()

            runner.run(close())


async def play(
    engine: VllmEngine, script: Script, desk: Desk | None, shuffler: random.Random | None
) -> list[int]:
    """The whole context of a trajectory in the end, decoded greedily."""
    observed = random.Random(script.seed)
    context = list(script.prompt)
    claim = desk.enter() if desk else None
    for generated, read in script.turns:
        if desk and shuffler:
            desk.shuffle(desk.alive, shuffler)
        turn = await engine.generate(
            context, max_tokens=generated, stop_token_ids=[], temperature=0.0, claim=claim
        )
        context += turn.token_ids
        context += [observed.randrange(2, VOCABULARY) for _ in range(read)]
    if desk and claim:
        desk.leave(claim.slot)
    return context


async def play_all(
    engine: VllmEngine,
    chosen: list[Script],
    desk: Desk | None = None,
    shuffler: random.Random | None = None,
) -> list[list[int]]:
    return await asyncio.gather(*(play(engine, s, desk, shuffler) for s in chosen))


async def growth(engine: VllmEngine, work: object) -> dict[str, int]:
    before = await engine.counts()
    await work  # type: ignore[misc]
    after = await engine.counts()
    return {name: after[name] - before[name] for name in after}


def test_tokens_are_those_of_stock_vllm_whatever_is_displaced_and_demoted(
    engines: Engines,
) -> None:
    chosen = scripts(24, 8, seed=1)

    async def scenario() -> None:
        expected = await play_all(engines.stock, chosen)
        before = await engines.ours.counts()
        assert await play_all(engines.ours, chosen, engines.desk, random.Random(5)) == expected
        after = await engines.ours.counts()
        assert after["displaced"] - before["displaced"] >= 50
        assert after["demoted"] - before["demoted"] >= 50
        assert after["checked"] == after["steps"] > 0

    engines.runner.run(scenario())


def test_every_step_tells_what_it_computed(engines: Engines) -> None:
    """Twice the same context: the second time all but its last block is found in the cache."""

    async def scenario() -> None:
        context = random_tokens(9, 150)
        for prefilled in (150, 150 - 150 // BLOCK * BLOCK):
            await engines.stock.steps()
            await engines.stock.generate(context, max_tokens=6, stop_token_ids=[])
            rows = await engines.stock.steps()
            assert sum(row[PREFILLED] for row in rows) == prefilled
            assert sum(row[DECODED] for row in rows) == 5
            assert sum(row[READ] for row in rows) == sum(range(151, 156))
            assert all(row[CPU_S] > 0 and row[STEP_WALL_S] > 0 for row in rows)
        assert await engines.stock.steps() == []

    engines.runner.run(scenario())


def test_more_is_found_in_the_cache_than_by_stock_vllm(engines: Engines) -> None:
    """Contexts overflow the cache several times."""
    chosen = scripts(12, 8, seed=2)

    async def scenario() -> None:
        stock = await growth(engines.stock, play_all(engines.stock, chosen))
        ours = await growth(engines.ours, play_all(engines.ours, chosen, engines.desk))
        rate = {
            name: counts["hit_tokens"] / counts["asked_tokens"]
            for name, counts in {"stock": stock, "ours": ours}.items()
        }
        assert rate["ours"] > rate["stock"]

    engines.runner.run(scenario())


def test_pinned_contexts_that_fill_the_cache_stop_nobody(engines: Engines) -> None:
    """Each nearly fills the cache alone, all of them are to be kept; so says the engine's reader.
    Requests that no trajectory claims get their turn too."""
    chosen = [
        Script(random_tokens(number, 300), [(40, 20)] * 3, seed=number) for number in range(6)
    ]

    async def scenario() -> None:
        expected = await play_all(engines.stock, chosen)
        mixed = await asyncio.gather(
            play_all(engines.ours, chosen[:4], engines.desk), play_all(engines.ours, chosen[4:])
        )
        assert [*mixed[0], *mixed[1]] == expected

    engines.runner.run(scenario())


def test_one_that_is_over_or_moved_away_leaves_its_blocks_first(engines: Engines) -> None:
    """Pins go with the next step that sees it in the table, and others then find room."""
    first, second, third = scripts(9, 2, seed=3)[::4]

    async def turn(script: Script, claim: Claim) -> None:
        await engines.ours.generate(
            script.prompt, max_tokens=60, stop_token_ids=[], temperature=0.0, claim=claim
        )

    async def scenario() -> None:
        desk = engines.desk
        claims = [desk.enter(), desk.enter()]
        await turn(first, claims[0])
        await turn(second, claims[1])
        before = await engines.ours.counts()
        desk.leave(claims[0].slot)
        desk.decide(claims[1].slot, rank=2, level=Level.HIGH, worker=1)
        last = desk.enter()
        await turn(third, last)
        after = await engines.ours.counts()
        assert after["released"] - before["released"] == 2
        desk.leave(last.slot, claims[1].slot)

    engines.runner.run(scenario())


def test_a_push_of_weights_drops_what_is_pinned(engines: Engines, tmp_path: Path) -> None:
    """vLLM refuses to forget its cache while anybody holds a block of it."""
    random_model(tmp_path, 4, tied=False, positions=CONTEXT)
    script = scripts(1, 2, seed=4)[0]

    async def scenario() -> None:
        claim = engines.desk.enter()

        async def turn(engine: VllmEngine, claim: Claim | None) -> list[int]:
            found = await engine.generate(
                script.prompt, max_tokens=50, stop_token_ids=[], temperature=0.0, claim=claim
            )
            return found.token_ids

        old = await turn(engines.ours, claim)
        for engine in (engines.stock, engines.ours):
            await engine.push_weights(tmp_path, 1)
        new = await turn(engines.ours, claim)
        assert new == await turn(engines.stock, None) != old
        engines.desk.leave(claim.slot)

    engines.runner.run(scenario())


def test_nonsense_about_whose_turn_it_is_does_no_harm(engines: Engines) -> None:
    prompt = list(range(2, 40))

    async def turn(engine: VllmEngine, claim: Claim | None) -> list[int]:
        found = await engine.generate(
            prompt, max_tokens=9, stop_token_ids=[], temperature=0.0, claim=claim
        )
        return found.token_ids

    async def scenario() -> None:
        expected = await turn(engines.stock, None)
        for claim in (
            Claim(SLOTS, 1),
            Claim(-1, 1),
            Claim(0, NOBODY),
            Claim("0", 1.5),  # type: ignore[arg-type]
            Claim(0, 1 << 63),
            Claim(1, 999_999),  # a slot that is somebody else's
        ):
            assert await turn(engines.ours, claim) == expected

    engines.runner.run(scenario())


def test_two_turns_of_one_trajectory_at_once_are_served(engines: Engines) -> None:
    """No caller of ours does it; another might, and must not end the engine."""
    prompt = list(range(2, 70))

    async def scenario() -> None:
        claim = engines.desk.enter()
        both = await asyncio.gather(
            *(
                engines.ours.generate(
                    prompt, max_tokens=length, stop_token_ids=[], temperature=0.0, claim=claim
                )
                for length in (20, 60)
            )
        )
        assert both[1].token_ids[:20] == both[0].token_ids
        engines.desk.leave(claim.slot)

    engines.runner.run(scenario())
