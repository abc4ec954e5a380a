"""vLLM behind a small asynchronous interface.

The engine core runs in processes of its own, so that neither the trainer nor the event loop
competes with it for the interpreter. Weights are pushed while no token is being computed:
unfinished requests are held, their cached attention state is dropped and computed anew, and go
on with the new weights; each token carries the version that produced it.

Does not handle: seeds per request (on CPU, vLLM 0.32 dies of them). Sampling is seeded once,
by the configuration; the order of requests in a batch still decides which numbers each one gets.
"""

import asyncio
import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from venusrl.engine.generation import EngineError, FinishReason, Generation, Probe

_EXTENSION = "venusrl.engine.worker_extension.WeightPushExtension"
_WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class EngineConfig:
    """``threads`` None means every core this process may use."""

    max_model_len: int = 1024
    max_concurrency: int = 256
    # Attention state of 2.5 M-parameter models is about 6 KiB per token.
    kv_cache_bytes: int = 1 << 30
    threads: int | None = None
    seed: int = 0
    start_timeout_s: float = 300.0
    push_timeout_s: float = 120.0
    # Where the engine's processes write their messages; None means to this process's stderr.
    log_path: Path | None = None


class VllmEngine:
    """A running engine. Made by ``start``; ``close`` ends its processes."""

    def __init__(self, llm: Any, config: EngineConfig) -> None:
        self._llm = llm
        self._config = config
        self._numbers = itertools.count()
        self._push_lock = asyncio.Lock()
        self.version = 0
        self.tokens_generated = 0
        self._under_way = 0
        self._busy_since = 0.0
        self._busy_before_s = 0.0

    @property
    def busy_s(self) -> float:
        """How long, in all, at least one request has been under way."""
        now = time.monotonic() - self._busy_since if self._under_way else 0.0
        return self._busy_before_s + now

    @classmethod
    async def start(cls, model_dir: Path | str, config: EngineConfig) -> "VllmEngine":
        """Load ``model_dir`` as version 0. Takes ten to thirty seconds."""
        os.environ.update(_environment(config))
        try:
            # Blocking on purpose: vLLM wants the running loop of the calling thread.
            with _interrupts_blocked(), _stderr_into(config.log_path):
                engine = cls(_make_llm(str(model_dir), config), config)
        except Exception as error:
            raise EngineError(f"start the engine on {model_dir}: {error}") from error
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await engine._llm.update_weight_version("0")
        except Exception as error:
            engine.close()
            raise EngineError(f"start the engine on {model_dir}: {error!r}") from error
        return engine

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
    ) -> Generation:
        """Sample a continuation; temperature 0 is greedy."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        output = await self._request(
            token_ids,
            SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                logprobs=0,
                detokenize=False,
                stop_token_ids=list(stop_token_ids),
                # What ends a turn is the caller's to say, not the model configuration's.
                ignore_eos=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )
        completion = output.outputs[0]
        produced = list(completion.token_ids)
        self.tokens_generated += len(produced)
        return Generation(
            token_ids=produced,
            logprobs=_chosen(completion.logprobs, produced),
            versions=_versions(completion.weight_versions, len(produced)),
            finish_reason=FinishReason(completion.finish_reason),
        )

    async def probe(self, token_ids: Sequence[int], *, max_tokens: int) -> Probe:
        """Logprobs of the given tokens (prefill) and of a sampled continuation (decoding)."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        output = await self._request(
            token_ids,
            SamplingParams(
                temperature=1.0,
                max_tokens=max_tokens,
                logprobs=0,
                prompt_logprobs=0,
                detokenize=False,
                ignore_eos=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )
        completion = output.outputs[0]
        produced = list(completion.token_ids)
        given = [0.0, *_chosen(output.prompt_logprobs[1:], list(token_ids)[1:])]
        return Probe([*token_ids, *produced], [*given, *_chosen(completion.logprobs, produced)])

    async def push_weights(self, path: Path | str, version: int) -> None:
        """Replace the weights by those in ``path``: a safetensors file or a directory with one.

        Safe at any time; requests under way go on afterwards with the new weights.
        """
        file = _weights_file(Path(path))
        async with self._push_lock:
            if version <= self.version:
                raise EngineError(
                    f"push {file}: version {version} is not newer than {self.version}"
                )
            try:
                async with asyncio.timeout(self._config.push_timeout_s):
                    await self._replace_weights(file, version)
            except Exception as error:
                # The weights may be half replaced; nobody may generate with them.
                raise EngineError(f"push {file} as version {version}: {error!r}") from error
            self.version = version

    async def _replace_weights(self, file: Path, version: int) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        await self._llm.collective_rpc("load_venus_weights", args=(str(file),))
        # Cached attention state belongs to the old weights, also that of held requests.
        if not await self._llm.reset_prefix_cache(reset_running_requests=True):
            raise EngineError("the prefix cache could not be reset")
        await self._llm.update_weight_version(str(version))
        await self._llm.resume_generation()

    async def _request(self, token_ids: Sequence[int], parameters: Any) -> Any:
        name = str(next(self._numbers))
        last = None
        if self._under_way == 0:
            self._busy_since = time.monotonic()
        self._under_way += 1
        try:
            async for output in self._llm.generate(
                {"prompt_token_ids": list(token_ids)}, parameters, name
            ):
                last = output
        except Exception as error:
            raise EngineError(
                f"generate from {len(token_ids)} tokens, request {name}: {error!r}"
            ) from error
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._busy_before_s += time.monotonic() - self._busy_since
        if last is None or not last.finished:
            raise EngineError(f"generate, request {name}: it ended without a result")
        return last

    def close(self) -> None:
        """End the engine's processes. A second call does nothing."""
        if self._llm is not None:
            llm, self._llm = self._llm, None
            llm.shutdown()
            # It is part of a reference cycle, and its finalizer fails once the interpreter ends.
            del llm
            gc.collect()


def _weights_file(path: Path) -> Path:
    return path / _WEIGHTS_FILE if path.is_dir() else path


def _make_llm(model_dir: str, config: EngineConfig) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model_dir,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_concurrency,
            max_num_batched_tokens=max(8192, config.max_model_len),
            kv_cache_memory_bytes=config.kv_cache_bytes,
            enable_prefix_caching=True,
            disable_log_stats=True,
            # Nothing implicit: sampling is what the request says.
            generation_config="vllm",
            worker_extension_cls=_EXTENSION,
            seed=config.seed,
        )
    )


def _environment(config: EngineConfig) -> Mapping[str, str]:
    """What vLLM reads from the environment, at import and in its processes."""
    cores = sorted(os.sched_getaffinity(0))[: config.threads]
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        # The default leaves all but one core idle here.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
        # A forked child of a process with threads may deadlock.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started inside inherit a blocked SIGINT.

    Ctrl-C goes to every process of the terminal's foreground group; the engine must outlive it,
    so that its user can finish the step and save.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _stderr_into(path: Path | None) -> Iterator[None]:
    """Processes started inside write their stderr to ``path``; so does this one meanwhile."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _chosen(positions: Sequence[Mapping[int, Any]], token_ids: Sequence[int]) -> list[float]:
    return [
        float(entry[token_id].logprob) for entry, token_id in zip(positions, token_ids, strict=True)
    ]


def _versions(spans: Sequence[Any] | None, count: int) -> list[int]:
    if spans is None:
        raise EngineError(f"read the versions of {count} tokens: the engine reported none")
    versions: list[int] = []
    for span in spans:
        versions.extend([int(span.version)] * (span.end - span.start))
    if len(versions) != count:
        raise EngineError(f"read the versions of {count} tokens: got {len(versions)}")
    return versions
