"""What a step of an engine costs, from first principles and published figures.

Nothing here is fitted to a policy. Sources:

- H100 SXM5 data sheet: 3.35 TB/s of HBM3, 989 TFLOP/s dense bf16, PCIe 5.0 x16 (64 GB/s each way);
  nvidia-smi shows 81,559 MiB.
- Model shapes: the published config.json of Qwen2.5-32B and Qwen3-4B.
- Attainable shares: decoding reaches 60-75 % of the memory's peak (vLLM and FlashInfer publish such
  figures for H100), a prefill in large chunks 50-60 % of the tensor cores' peak, pinned copies over
  PCIe 5.0 x16 about 45 of 64 GB/s.
- Two milliseconds per step for launches, scheduling, sampling and the all-reduces of tensor
  parallel 2.

With these, recomputing a context of 25,000 tokens of the 32B costs 75 µs per token and reloading it
from host memory 2.9 µs per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HBM_BYTES_PER_S = 3.35e12
HBM_SHARE = 0.70
DENSE_BF16_FLOPS = 989e12
PREFILL_SHARE = 0.55
GPU_BYTES = 81_559 * 2**20
GPU_MEMORY_SHARE = 0.90
WORKSPACE_BYTES = 2.5e9  # per GPU: activations, graphs, communication buffers
PCIE_BYTES_PER_S = 45e9
STEP_OVERHEAD_S = 2e-3
STEP_TOKENS = 8192  # vLLM's max_num_batched_tokens on H100
MAX_RUNNING = 256  # vLLM's max_num_seqs


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    gpus: int  # of one engine

    @property
    def kv_bytes(self) -> int:
        """Per token, bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


QWEN_32B = ModelShape("32B", 32.8e9, 64, 40, 8, 128, gpus=2)
QWEN_4B = ModelShape("4B", 4.0e9, 36, 32, 8, 128, gpus=1)
SHAPES = {shape.name: shape for shape in (QWEN_32B, QWEN_4B)}


class EngineModel(NamedTuple):
    """The constants of one engine, as the compiled code reads them. Seconds and tokens."""

    overhead_s: float  # per step
    weights_s: float  # reading the weights once, per step
    read_s: float  # reading the cached context, per step and token of it
    compute_s: float  # per token that a step computes
    attend_s: float  # per token that a step prefills and token before it
    reload_s: float  # host to GPU, per token
    writeback_s: float  # GPU to host, per token
    kv_capacity: int
    host_capacity: int
    step_tokens: int
    max_running: int
    block_tokens: int = 1  # memory is taken, cached and found in whole blocks


def engine_model(shape: ModelShape, host_factor: float = 0.0) -> EngineModel:
    """An engine of H100s; its host tier holds `host_factor` times what its GPUs hold."""
    memory = shape.gpus * HBM_BYTES_PER_S * HBM_SHARE
    flops = shape.gpus * DENSE_BF16_FLOPS * PREFILL_SHARE
    link = shape.gpus * PCIE_BYTES_PER_S
    weight_bytes = 2 * shape.parameters
    free_bytes = shape.gpus * (GPU_MEMORY_SHARE * GPU_BYTES - WORKSPACE_BYTES) - weight_bytes
    kv_capacity = int(free_bytes / shape.kv_bytes)
    return EngineModel(
        overhead_s=STEP_OVERHEAD_S,
        weights_s=weight_bytes / memory,
        read_s=shape.kv_bytes / memory,
        compute_s=2 * shape.parameters / flops,
        # Scores and values: two multiplications and additions per query head and element, each.
        attend_s=4 * shape.layers * shape.query_heads * shape.head_size / flops,
        reload_s=shape.kv_bytes / link,
        writeback_s=shape.kv_bytes / link,
        kv_capacity=kv_capacity,
        host_capacity=int(host_factor * kv_capacity),
        step_tokens=STEP_TOKENS,
        max_running=MAX_RUNNING,
    )


SENSITIVE = (
    "overhead_s", "weights_s", "read_s", "compute_s", "attend_s", "reload_s", "kv_capacity",
)  # fmt: skip


def scaled(model: EngineModel, constant: str, factor: float) -> EngineModel:
    """The same engine with one constant scaled."""
    value = getattr(model, constant)
    return model._replace(**{constant: type(value)(value * factor)})
