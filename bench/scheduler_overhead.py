"""What our scheduler class adds to a step of vLLM: processor time of `schedule()` and of freeing
blocks, ours against vLLM's own, over the processor time of whole steps.

Both run the same turns in engines with room for all of them, so both do the same steps; ours also
reads a table that changes at every tenth step, pins and gives back. The checker of invariants is
off, and one of its checks is timed by itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.common import host_facts
from bench.rollout_model import save_model
from venusrl.engine import EngineConfig
from venusrl.engine.engine_process import environment
from venusrl.engine.shared_table import DECISION, NOBODY, Claim, SharedTable
from venusrl.schedule.snapshot import Level

VOCABULARY, CONTEXT, BLOCK = 512, 640, 32


class Clock:
    """Processor time spent in some methods of an object, while `on`."""

    def __init__(self) -> None:
        self.spent_s, self.on, self._inside = 0.0, False, False

    def wrap(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.on:
                return method(*args, **kwargs)
            self._inside, begun = True, time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent_s += time.thread_time() - begun
                self._inside = False

        setattr(owner, name, timed)


class Bench:
    """One engine in this process. `table` None: vLLM's own scheduler."""

    def __init__(self, model: Path, running: int, table: SharedTable | None) -> None:
        from venusrl.engine.server import make_llm

        self.running, self.table = running, table
        blocks = 1 + running * (CONTEXT // BLOCK)
        config = EngineConfig(
            max_model_len=CONTEXT,
            max_concurrency=running,
            kv_cache_bytes=1 << 28,
            kv_blocks=blocks,
            block_tokens=BLOCK,
            step_tokens=2048,
            scheduler=None if table is None else {"table": str(table.path)},
        )
        self.llm = make_llm(str(model), config)
        self.scheduler = self.llm.engine_core.engine_core.scheduler
        self.clock = Clock()
        for name in ("schedule", "_free_request_blocks", "add_request"):
            self.clock.wrap(self.scheduler, name)
        self.number = 0
        self.rows = np.zeros(1, DECISION) if table is None else np.zeros(table.rows, DECISION)
        self.rows["trajectory"] = NOBODY

    def turns(self, rounds: int, tokens: int) -> tuple[float, float, int]:
        """Seconds in the scheduler and in all, and steps, of so many turns of each trajectory."""
        random = np.random.default_rng(3)
        contexts = [random.integers(2, VOCABULARY, 300).tolist() for _ in range(self.running)]
        steps = 0
        self.clock.spent_s, self.clock.on = 0.0, True
        begun = time.process_time()
        for _ in range(rounds):
            for at, context in enumerate(contexts):
                self.ask(at, context, tokens)
            while self.llm.has_unfinished_requests():
                steps += 1
                if self.table is not None and steps % 10 == 0:
                    self.decide(random)
                for output in self.llm.step():
                    if output.finished:
                        at = int(output.request_id) % self.running
                        contexts[at] += list(output.outputs[0].token_ids)
        spent_s = time.process_time() - begun
        self.clock.on = False
        return self.clock.spent_s, spent_s, steps

    def decide(self, random: np.random.Generator) -> None:
        assert self.table is not None
        active = self.rows[: self.running]
        active["trajectory"] = np.arange(self.running)
        active["rank"] = random.permutation(self.running)
        active["critical"] = random.random(self.running) < 0.3
        active["level"] = np.where(random.random(self.running) < 0.9, Level.HIGH, Level.LOW)
        self.table.publish(self.rows)

    def ask(self, at: int, context: list[int], tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=Claim(at, at).extra_args,
        )
        number = self.number * self.running + at
        self.number += at == self.running - 1
        self.llm.add_request(str(number), {"prompt_token_ids": context}, parameters)

    def check_ms(self) -> float:
        from venusrl.engine.invariants import check

        begun = time.thread_time()
        check(self.scheduler)
        return 1000 * (time.thread_time() - begun)


@click.command(help=__doc__)
@click.option("--running", default=32, show_default=True, help="Turns that run at once.")
@click.option("--slots", default=4096, show_default=True, help="Rows of the table.")
@click.option("--rounds", default=4, show_default=True, help="Turns of each trajectory.")
@click.option("--tokens", default=32, show_default=True, help="Generated by each turn.")
def main(running: int, slots: int, rounds: int, tokens: int) -> None:
    os.environ.update(environment(1))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="scheduler-overhead-") as name:
        place = Path(name)
        save_model(place / "model", VOCABULARY, CONTEXT)
        table = SharedTable.create(place / "table", DECISION, slots)
        for label, used in (("ours", table), ("stock", None)):
            bench = Bench(place / "model", running, used)
            bench.turns(1, 4)
            scheduler_s, whole_s, steps = bench.turns(rounds, tokens)
            found[label] = {
                "scheduler_us_per_step": round(1e6 * scheduler_s / steps, 1),
                "step_us": round(1e6 * whole_s / steps, 1),
                "steps": steps,
            }
            if used is not None:
                found["check_ms"] = round(bench.check_ms(), 3)
                found["blocks"] = bench.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    ours, stock = found["ours"], found["stock"]
    added_us = ours["scheduler_us_per_step"] - stock["scheduler_us_per_step"]
    share = added_us / stock["step_us"]
    print(f"scheduler_overhead: {added_us:.1f} µs of a step, {100 * share:.2f} %", file=sys.stderr)
    print(
        json.dumps(
            {
                "bench": "scheduler_overhead",
                "added_us_per_step": round(added_us, 1),
                "share_of_step": round(share, 5),
                **found,
                "running": running,
                "host": host_facts(),
            }
        )
    )


if __name__ == "__main__":
    main()
