"""Generation with vLLM: token ids in, token ids with logprobs and weight versions out."""

from venusrl.engine.engine_process import EngineConfig
from venusrl.engine.generation import (
    EngineError,
    FinishReason,
    Generation,
    Probe,
    RolloutEnded,
    WeightsError,
)
from venusrl.engine.probe import LogprobMismatch, compare_logprobs
from venusrl.engine.vllm_engine import VllmEngine

__all__ = [
    "EngineConfig",
    "EngineError",
    "FinishReason",
    "Generation",
    "LogprobMismatch",
    "Probe",
    "RolloutEnded",
    "VllmEngine",
    "WeightsError",
    "compare_logprobs",
]
