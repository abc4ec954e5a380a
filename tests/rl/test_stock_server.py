"""The router over vLLM's own server, with its own scheduler: the stock mode."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from transformers import Qwen3ForCausalLM

from tests.support.random_model import VOCABULARY, logprobs_of, random_model
from venusrl.engine import EngineError
from venusrl.engine.http_engine import HttpEngine
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Phase

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

CONTEXT, BLOCK, BLOCKS = 512, 32, 24


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SHARED = Path("/dev/shm")


def forget_shared_memory(before: set[Path]) -> None:
    """What a killed server shared among its processes lives on: nobody unlinks it."""
    mapped: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mapped |= {found.path for found in process.memory_maps()}
    for path in set(SHARED.iterdir()) - before:
        if path.name.startswith(("psm_", "sem.mp-")) and str(path) not in mapped:
            path.unlink(missing_ok=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int, Qwen3ForCausalLM]]:
    """Its address, the process group, and the model."""
    model = random_model(tmp_path / "model", 3, tied=False, positions=CONTEXT)
    port, shared = free_port(), set(SHARED.iterdir())
    options = {
        "model": tmp_path / "model",
        "served-model-name": "policy",
        "dtype": "float32",
        "max-model-len": CONTEXT,
        "max-num-seqs": 8,
        "num-gpu-blocks-override": BLOCKS,
        "block-size": BLOCK,
        "kv-cache-memory-bytes": 1 << 26,
        "scheduling-policy": "priority",
        "generation-config": "vllm",
        "host": "127.0.0.1",
        "port": port,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *(*arguments, "--skip-tokenizer-init", "--enforce-eager"),
        ],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
        },
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}", process.pid, model
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        forget_shared_memory(shared)


async def episode(handle: Rollout, prompt: list[int], seed: int, model: Qwen3ForCausalLM) -> None:
    chance = random.Random(seed)
    context = list(prompt)
    for _ in range(3):
        turn = await handle.generate(context, max_tokens=40, stop_token_ids=[])
        before = len(context)
        context += turn.token_ids
        expected = logprobs_of(model)(context)[before:]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
        context += [chance.randrange(2, VOCABULARY) for _ in range(9)]
    handle.finish()


def test_trajectories_run_on_a_server_that_knows_nothing_of_them(
    server: tuple[str, int, Qwen3ForCausalLM],
) -> None:
    url, group, model = server
    connected: list[HttpEngine] = []

    async def start(number: int) -> HttpEngine:
        patience_s = 2.0 if connected else 360.0
        connected.append(await HttpEngine.connect(url, "policy", timeout_s=patience_s))
        return connected[-1]

    async def scenario() -> None:
        capacity = Capacity(BLOCKS * BLOCK, 8)
        config = RouterConfig(engines=1, capacity=capacity, batch_groups=2)
        router = await Router.start(config, start, Priority(growth_tokens=100.0))
        try:
            assert await connected[0].kv_tokens() == BLOCKS * BLOCK
            chance = random.Random(2)
            episodes = []
            for number in range(2):
                prompt = [chance.randrange(2, VOCABULARY) for _ in range(60)]
                handles = router.dispatch(len(prompt), 4)
                episodes += [episode(h, prompt, number, model) for h in handles]
            whole = asyncio.gather(*episodes)
            await asyncio.sleep(0)
            # 8 contexts do not fit: some are held back by the router.
            decided = {member.admitted for member in router.rollouts}
            while decided == {False}:
                await asyncio.sleep(0.01)
                decided = {member.admitted for member in router.rollouts}
            assert decided == {True, False}
            await whole
            router.retire(await router.batch())
            (refused,) = router.dispatch(9, 1)
            with pytest.raises(EngineError, match="status 400"):
                await refused.generate([5] * 600, max_tokens=4, stop_token_ids=[])
            # It would hold its place, and so would a context that is too long.
            refused.finish()
            with pytest.raises(ValueError, match="without a way"):
                await router.push_weights("somewhere", 1)

            (handle,) = router.dispatch(9, 1)
            turn = asyncio.create_task(handle.generate([5] * 9, max_tokens=500, stop_token_ids=[]))
            while True:
                if handle.member.phase is Phase.RUNNING:
                    break
                await asyncio.sleep(0.01)
            os.killpg(group, signal.SIGKILL)
            with pytest.raises(EngineError, match="given up: connect to the engine at http"):
                await turn
        finally:
            await router.close()

    asyncio.run(scenario())
