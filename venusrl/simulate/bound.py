"""What no policy can exceed where memory is scarce: engines that are always full and waste nothing.

Nothing is computed twice, prefill hides behind the weights, a prompt is stored once for all its
siblings, and no memory is free. Then an engine's memory holds contexts that decode and contexts
whose tools work, and the order in which trajectories run does not matter: each takes memory for
as long as its turns and tools last. A host tier, at its best, takes all those whose tools work.
"""

from __future__ import annotations

from venusrl.simulate.cluster import Scenario
from venusrl.simulate.workload import draw_group

BOUND_SEED = 2**32 - 2
BOUND_GROUPS = 400


def tokens_per_hour_bound(scenario: Scenario) -> float:
    """Generated tokens per hour of all engines. Memory is the only limit that counts."""
    model, workload = scenario.model, scenario.workload
    generated = read = stored = tool_area = 0.0
    for index in range(BOUND_GROUPS):
        script = draw_group(workload, BOUND_SEED, index, scenario.group_size)
        for member in range(scenario.group_size):
            turns = script.turns[member]
            tokens = script.generated[member, :turns].astype(float)
            added = tokens + script.observed[member, :turns]
            before = added.cumsum() - added  # without the prompt, when a turn begins
            own = tokens * before + tokens * (tokens - 1) / 2
            shared = workload.prompt_tokens / scenario.group_size
            generated += tokens.sum()
            read += (own + tokens * workload.prompt_tokens).sum()
            stored += (own + tokens * shared).sum()
            waited = script.tool_s[member, : turns - 1]
            tool_area += ((before + tokens)[: turns - 1] * waited).sum()
    read, stored, tool_area = read / generated, stored / generated, tool_area / generated
    if model.host_capacity > 0:
        tool_area = 0.0
    low, high = 0.0, model.kv_capacity / stored
    for _ in range(60):
        decoding = (low + high) / 2
        step_s = model.overhead_s + model.weights_s + model.read_s * decoding * read
        if decoding * stored + decoding / step_s * tool_area > model.kv_capacity:
            high = decoding
        else:
            low = decoding
    step_s = model.overhead_s + model.weights_s + model.read_s * low * read
    return 3600 * scenario.engines * low / step_s
