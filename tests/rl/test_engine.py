"""The engine against transformers, with real vLLM and small random models."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tests.support.random_model import VOCABULARY, logprobs_of, random_model
from venusrl.engine import (
    EngineConfig,
    EngineError,
    FinishReason,
    LogprobMismatch,
    VllmEngine,
    WeightsError,
    compare_logprobs,
)

pytestmark = [pytest.mark.rl, pytest.mark.timeout(240)]

PROMPTS = [[5, 9, 33, 70, 71], list(range(20, 60)), [3] * 7 + [100, 101]]


async def largest_difference(engine: VllmEngine, model: Qwen3ForCausalLM) -> float:
    probes = await asyncio.gather(
        # The first prompt token has nothing before it, all others are compared.
        *(engine.probe(ids, max_tokens=12, chosen=[0] + [1] * (len(ids) - 1)) for ids in PROMPTS)
    )
    return compare_logprobs(probes, logprobs_of(model), version=engine.version, tolerance=1e-4)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_weights_pushed_there_and_back_give_the_trainers_logprobs(
    tmp_path: Path, tied: bool
) -> None:
    first = random_model(tmp_path / "a", 1, tied=tied)
    second = random_model(tmp_path / "b", 2, tied=tied)

    async def scenario() -> None:
        engine = await VllmEngine.start(tmp_path / "a", EngineConfig(max_model_len=512))
        try:
            assert await largest_difference(engine, first) < 1e-4
            # There and back: a push that changes nothing would pass the way back alone.
            for version, (name, model) in enumerate(
                [("b", second), ("a", first), ("b", second)], start=1
            ):
                await engine.push_weights(tmp_path / name, version)
                assert await largest_difference(engine, model) < 1e-4
            with pytest.raises(LogprobMismatch, match="after pushing version 3"):
                await largest_difference(engine, first)
            await generation_across_a_push(engine, tmp_path, first, second)
            await stop_tokens_and_greedy_decoding(engine, first)
            with pytest.raises(EngineError, match="not newer"):
                await engine.push_weights(tmp_path / "a", engine.version)
            await refused_and_cancelled_requests(engine)
            if tied:
                await failing_push(engine, tmp_path)
            else:
                await death_of_the_process(engine)
        finally:
            engine.close()

    asyncio.run(scenario())


async def generation_across_a_push(
    engine: VllmEngine, directory: Path, first: Qwen3ForCausalLM, second: Qwen3ForCausalLM
) -> None:
    """A request under way at a push keeps its tokens; later ones are of the new weights."""
    before = engine.version
    running = asyncio.create_task(engine.generate(PROMPTS[0], max_tokens=480, stop_token_ids=[]))
    await asyncio.sleep(0.3)
    await engine.push_weights(directory / "a", before + 1)
    done = await running
    turn = done.versions.index(before + 1)
    assert 0 < turn < 480, "the push fell outside the generation; nothing was tested"
    assert done.versions == [before] * turn + [before + 1] * (480 - turn)
    sequence = [*PROMPTS[0], *done.token_ids]
    skip = len(PROMPTS[0])
    for model, part in ((second, slice(0, turn)), (first, slice(turn, None))):
        expected = logprobs_of(model)(sequence)[skip:][part]
        assert done.logprobs[part] == pytest.approx(expected, abs=1e-4)


async def stop_tokens_and_greedy_decoding(engine: VllmEngine, model: Qwen3ForCausalLM) -> None:
    greedy = await engine.generate(PROMPTS[1], max_tokens=8, stop_token_ids=[], temperature=0.0)
    assert greedy.finish_reason is FinishReason.LENGTH
    with torch.no_grad():
        ids = torch.tensor([PROMPTS[1]])
        assert greedy.token_ids[0] == int(model(input_ids=ids).logits[0, -1].argmax())
    # The stop token is part of what was produced, with its logprob.
    stop = greedy.token_ids[3]
    cut = greedy.token_ids.index(stop) + 1
    stopped = await engine.generate(
        PROMPTS[1], max_tokens=8, stop_token_ids=[stop], temperature=0.0
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == greedy.token_ids[:cut]
    assert stopped.logprobs == pytest.approx(greedy.logprobs[:cut], abs=1e-5)


async def refused_and_cancelled_requests(engine: VllmEngine) -> None:
    """Neither disturbs the others."""
    with pytest.raises(EngineError, match="generate from 600 tokens"):
        await engine.generate([3] * 600, max_tokens=5, stop_token_ids=[])
    for stranger in (-1, VOCABULARY, 10**12):
        with pytest.raises(EngineError, match=f"not all in the vocabulary of {VOCABULARY}"):
            await engine.generate([3, stranger], max_tokens=5, stop_token_ids=[])
    long = [
        asyncio.create_task(engine.generate(ids, max_tokens=400, stop_token_ids=[]))
        for ids in PROMPTS
    ]
    await asyncio.sleep(0.2)
    long[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await long[0]
    for task in long[1:]:
        assert len((await task).token_ids) == 400


async def failing_push(engine: VllmEngine, directory: Path) -> None:
    with pytest.raises(WeightsError, match="there is no such file"):
        await engine.push_weights(directory / "missing", engine.version + 1)
    await engine.generate(PROMPTS[0], max_tokens=1, stop_token_ids=[])
    (directory / "broken.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsError, match=r"push .*broken.safetensors as version"):
        await engine.push_weights(directory / "broken.safetensors", engine.version + 1)
    # Half-replaced weights may not be used.
    with pytest.raises(EngineError):
        await engine.generate(PROMPTS[0], max_tokens=1, stop_token_ids=[])


async def death_of_the_process(engine: VllmEngine) -> None:
    # Ctrl-C in a terminal reaches it too, and must not end it.
    os.kill(engine.pid, signal.SIGINT)
    await engine.generate(PROMPTS[0], max_tokens=2, stop_token_ids=[])
    waiting = asyncio.create_task(engine.generate(PROMPTS[0], max_tokens=400, stop_token_ids=[]))
    await asyncio.sleep(0.1)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="ended with status -9"):
        await waiting
    with pytest.raises(EngineError, match="ended with status -9"):
        await engine.generate(PROMPTS[0], max_tokens=2, stop_token_ids=[])


def test_a_model_that_is_not_there_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="start the engine on"):
        asyncio.run(VllmEngine.start(tmp_path / "missing", EngineConfig()))
