"""How an engine's process is started: its configuration, arguments and environment."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from venusrl.engine.settings import require_counts, require_numbers


@dataclass(frozen=True)
class EngineConfig:
    """``threads`` None means every core this process may use."""

    max_model_len: int = 1024
    max_concurrency: int = 256
    # Attention state of 2.5 M-parameter models is about 6 KiB per token.
    kv_cache_bytes: int = 1 << 30
    # Blocks of attention state instead of bytes, and tokens per block; None: vLLM's own.
    kv_blocks: int | None = None
    block_tokens: int | None = None
    # Host memory for attention state, beside that of the GPU (host_tier.py); 0: none. Not on CPU.
    host_cache_bytes: int = 0
    # Tokens that one step computes at most; None: 8,192, or a whole context if that is more.
    step_tokens: int | None = None
    # The options of our scheduler (scheduler_options.Options); None: vLLM's own, by priority.
    scheduler: Mapping[str, Any] | None = None
    threads: int | None = None
    # Whether each step is timed (counting.StepLog).
    log_steps: bool = False
    seed: int = 0
    start_timeout_s: float = 300.0
    push_timeout_s: float = 120.0
    # An engine that does not answer for so long hangs, and is killed. Longer than any step.
    answer_timeout_s: float = 120.0
    # Where the engine's process writes its messages; None means to this process's stderr.
    log_path: Path | None = None

    def __post_init__(self) -> None:
        counts = ("max_model_len", "max_concurrency", "kv_cache_bytes")
        require_counts("engine", 1, **{name: getattr(self, name) for name in counts})
        seconds = ("start_timeout_s", "push_timeout_s", "answer_timeout_s")
        require_numbers("engine", above=0.0, **{name: getattr(self, name) for name in seconds})


def spawn(connection: socket.socket, model: str, config: EngineConfig) -> "subprocess.Popen[bytes]":
    # Its messages go there by themselves; and a table may be given as a Path.
    settings = json.dumps(asdict(replace(config, log_path=None)), default=os.fspath)
    number = connection.fileno()
    log = None if config.log_path is None else config.log_path.open("ab")
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "venusrl.engine.server", str(number), model, settings],
            env={**os.environ, **environment(config.threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[number],
        )
    finally:
        if log is not None:
            log.close()


def obituary(process: "subprocess.Popen[bytes]", log: Path | None) -> str:
    """How a process that has closed its connection ended."""
    # Its end of the socket closes a moment before it is gone.
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    status = process.poll()
    text = (
        "the engine's process has closed its connection"
        if status is None
        else f"the engine's process ended with status {status}"
    )
    if log is None or not log.exists():
        return text
    return f"{text}; the end of {log}:\n{log.read_text(errors='replace')[-1500:]}"


def environment(threads: int | None) -> Mapping[str, str]:
    """What vLLM is to find in its environment; `threads` as in the configuration."""
    threads = threads or len(os.sched_getaffinity(0))
    # This package is importable there as it is here, whatever the working directory.
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        # No further processes: server.py is the engine core and the worker in one.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin between operations would take the cores from the sandboxes that the
        # generated commands run in: measured, five times the processor time and the wall time.
        "OMP_WAIT_POLICY": "passive",
    }
