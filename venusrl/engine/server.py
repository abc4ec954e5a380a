"""The engine's own process: ``python -m venusrl.engine.server FD MODEL CONFIG``, started by
engine_process.py.

One thread, one loop: take what has been asked, advance vLLM by one step, answer what is finished.
A push of weights therefore falls between two steps by construction, and nothing spins: with its
default layout on CPU (front end, engine core, worker) vLLM polls shared memory from a process of
its own, which costs as much processor time as half of the generation itself.

Ends when its socket does, so it never outlives the process that started it.
"""

import json
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from venusrl.engine.counting import StepLog, count_prefill
from venusrl.engine.engine_process import EngineConfig
from venusrl.engine.shared_table import Claim
from venusrl.engine.step_cost import PREFILL_COST, StepCost, measure_steps
from venusrl.engine.wire import PARTIAL_TOKENS, READY_ID, decode, encode

# After a step in which nobody found room: a tool that ends, or a decision, makes some.
_EMPTY_STEP_WAIT_S = 0.002
_EXTENSION = "venusrl.engine.worker_extension.WeightPushExtension"


def make_llm(model: str, config: EngineConfig) -> Any:
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(engine_args(model, config))


def engine_args(model: str, config: EngineConfig) -> Any:
    """What vLLM is started with."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    # vLLM schedules ahead everywhere but on CPUs.
    variant = "PriorityScheduler" if current_platform.is_cpu() else "AsyncPriorityScheduler"
    ours: dict[str, Any] = {
        "scheduler_cls": f"venusrl.engine.scheduler.{variant}",
        "additional_config": {"venus": config.scheduler},
    }
    return EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_concurrency,
        max_num_batched_tokens=config.step_tokens or max(8192, config.max_model_len),
        kv_cache_memory_bytes=config.kv_cache_bytes,
        num_gpu_blocks_override=config.kv_blocks,
        block_size=config.block_tokens,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        **(ours if config.scheduler else {}),
        kv_transfer_config=_host_tier(config.host_cache_bytes, bool(config.scheduler)),
        disable_log_stats=True,
        # Nothing implicit: sampling is what the request says.
        generation_config="vllm",
        worker_extension_cls=_EXTENSION,
        seed=config.seed,
    )


def _host_tier(host_bytes: int, ours: bool) -> Any | None:
    if not host_bytes:
        return None
    from vllm.config import KVTransferConfig

    from venusrl.engine.host_tier import connector_config

    return KVTransferConfig(**connector_config(host_bytes, ours=ours))


class Server:
    def __init__(self, llm: Any, connection: socket.socket, *, log_steps: bool = False) -> None:
        self._llm = llm
        self._connection = connection
        self._received = b""
        self._version = 0
        self._vocabulary: int = llm.model_config.get_vocab_size()
        # What has been produced of requests that want to see it before their end.
        self._streamed: dict[int, dict[str, list[Any]]] = {}
        self._scheduler = llm.engine_core.engine_core.scheduler
        self._prefill = count_prefill(self._scheduler)
        own: StepCost | None = getattr(self._scheduler, "step_cost", None)
        self._cost = own or measure_steps(self._scheduler)
        self._steps = StepLog(llm, self._scheduler) if log_steps else None

    def run(self) -> None:
        """Serve until the other end closes the connection."""
        self._send({"id": READY_ID, "result": {}})
        while True:
            wait_s = None
            if self._llm.has_unfinished_requests():
                wait_s = _EMPTY_STEP_WAIT_S if self._cost.empty else 0.0
            for line in self._lines(wait_s):
                if line is None:
                    return
                self._handle(decode(line))
            if self._llm.has_unfinished_requests():
                self._step()

    def _step(self) -> None:
        for output in self._llm.step():
            self._answer(output)

    def _answer(self, output: Any) -> None:
        number = int(output.request_id)
        streamed = self._streamed.get(number)
        if streamed is None:
            if output.finished:
                self._send({"id": number, "result": result_of(output)})
            return
        fresh = output.outputs[0]
        produced = list(fresh.token_ids)
        streamed["token_ids"] += produced
        streamed["logprobs"] += _chosen(fresh.logprobs, produced)
        # A push falls between two steps, so what a step brings is of one version.
        streamed["versions"] += [self._version] * len(produced)
        if output.finished:
            del self._streamed[number]
            self._send({"id": number, "result": streamed | {"finish_reason": fresh.finish_reason}})
        elif len(streamed["token_ids"]) % PARTIAL_TOKENS == 0:
            last = {name: values[-PARTIAL_TOKENS:] for name, values in streamed.items()}
            self._send({"id": number, "partial": last})

    def _lines(self, timeout_s: float | None) -> Iterator[bytes | None]:
        """The lines that have arrived, or arrive first within `timeout_s`; None at the end of the
        connection."""
        while select.select([self._connection], [], [], timeout_s)[0]:
            timeout_s = 0.0
            data = self._connection.recv(1 << 20)
            if not data:
                yield None
                return
            *whole, self._received = (self._received + data).split(b"\n")
            yield from whole

    def _handle(self, request: dict[str, Any]) -> None:
        number = request["id"]
        try:
            match request["op"]:
                case "generate":
                    self._generate(number, request)
                case "abort":
                    self._streamed.pop(number, None)
                    self._llm.abort_request([str(number)])
                case "push":
                    self._push(request["path"], request["version"])
                    self._send({"id": number, "result": {}})
                case "counts":
                    self._send({"id": number, "result": self._counts()})
                case "steps":
                    rows = self._steps.take() if self._steps else []
                    self._send({"id": number, "result": {"rows": rows}})
                case other:
                    raise ValueError(f"no such operation: {other}")
        except Exception as error:
            # One bad request is its sender's trouble. What is fatal fails again in the next step.
            self._send({"id": number, "error": f"{type(error).__name__}: {error}"})

    def _generate(self, number: int, request: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        claim, token_ids = request["claim"], request["token_ids"]
        # Beyond the table of embeddings: the step would fail, and with it everybody's turn.
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary:
            raise ValueError(
                f"token ids from {min(token_ids)} to {max(token_ids)} are not all in the "
                f"vocabulary of {self._vocabulary}"
            )
        parameters = SamplingParams(
            temperature=request["temperature"],
            max_tokens=request["max_tokens"],
            logprobs=0,
            prompt_logprobs=0 if request["prompt_logprobs"] else None,
            detokenize=False,
            stop_token_ids=request["stop_token_ids"],
            # What ends a turn is the caller's to say, not the model configuration's.
            ignore_eos=True,
            output_kind=(
                RequestOutputKind.DELTA if request["partial"] else RequestOutputKind.FINAL_ONLY
            ),
            extra_args=None if claim is None else Claim(*claim).extra_args,
        )
        self._llm.add_request(
            str(number),
            {"prompt_token_ids": token_ids},
            parameters,
            priority=request["priority"],
        )
        if request["partial"]:
            self._streamed[number] = {"token_ids": [], "logprobs": [], "versions": []}

    def _push(self, path: str, version: int) -> None:
        from venusrl.engine.host_tier import settle

        settle(self._scheduler, self._step)
        self._llm.collective_rpc("load_venus_weights", args=(path,))
        # Cached attention state belongs to the old weights, also that of unfinished requests, and
        # what host memory holds.
        if not self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise RuntimeError("the prefix cache could not be reset")
        self._llm.set_weight_version(str(version))
        self._version = version

    def _counts(self) -> dict[str, int]:
        own = getattr(self._scheduler, "counts", None)
        cost = {PREFILL_COST: round(1e9 * self._cost.token_s)}
        return asdict(self._prefill) | cost | (asdict(own) if own else {})

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(encode(message))


def result_of(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    produced = list(completion.token_ids)
    result: dict[str, Any] = {
        "token_ids": produced,
        "logprobs": _chosen(completion.logprobs, produced),
        "versions": _versions(completion.weight_versions, len(produced)),
        "finish_reason": completion.finish_reason,
    }
    if output.prompt_logprobs is not None:
        # The first token has none: nothing comes before it.
        result["prompt_logprobs"] = _chosen(output.prompt_logprobs[1:], output.prompt_token_ids[1:])
    return result


def _chosen(positions: Sequence[Mapping[int, Any]], token_ids: Sequence[int]) -> list[float]:
    return [
        float(entry[token_id].logprob) for entry, token_id in zip(positions, token_ids, strict=True)
    ]


def _versions(spans: Sequence[Any] | None, count: int) -> list[int]:
    versions: list[int] = []
    for span in spans or ():
        versions.extend([int(span.version)] * (span.end - span.start))
    if len(versions) != count:
        raise RuntimeError(f"versions of {count} tokens: vLLM reported {len(versions)}")
    return versions


def main() -> None:
    # Ctrl-C goes to every process of the terminal's foreground group; the engine must outlive
    # it, so that its user can finish the step and save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    config = EngineConfig(**json.loads(sys.argv[3]))
    llm = make_llm(sys.argv[2], config)
    llm.set_weight_version("0")
    Server(llm, connection, log_steps=config.log_steps).run()


if __name__ == "__main__":
    main()
