"""Our order of eviction under vLLM's own offloading manager: stores and loads in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from venusrl.engine.host_order import EngineView
from venusrl.engine.host_tier import PriorityCachePolicy
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

BLOCK = 16


class Manager(RuleBasedStateMachine):
    """Stores and loads of three siblings and a stranger, begun and ended in any order."""

    CHUNKS, LONGEST, SHARED = 6, 5, 2

    def __init__(self) -> None:
        super().__init__()
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.manager = CPUOffloadingManager(
            self.CHUNKS, PriorityCachePolicy.__name__, PriorityCachePolicy.__module__
        )
        policy = self.manager._policy
        assert isinstance(policy, PriorityCachePolicy)
        self.policy = policy
        self.step, self.ranks, self.gpu = 0, dict.fromkeys(range(4), 0), set[bytes]()
        policy.order.engine = EngineView(
            step=lambda: self.step,
            level=lambda who: Level.HIGH if who in self.ranks else Level.UNUSED,
            priority=lambda who: self.ranks[who],
            on_gpu=self.gpu.__contains__,
        )
        self.keys: list[list[Any]] = []
        for who in range(4):
            shared = self.SHARED if who < 3 else 0
            names = [f"p{at}" if at < shared else f"{who}.{at}" for at in range(self.LONGEST)]
            self.keys.append([make_offload_key(name.encode(), 0) for name in names])
        self.contexts = [self.request(who) for who in range(4)]
        self.used: list[set[Any]] = [set() for _ in range(4)]  # in this turn, and known as such
        self.refused: list[set[Any]] = [set() for _ in range(4)]  # in this turn, for want of room
        self.writing: list[tuple[int, list[Any]]] = []
        self.reading: list[tuple[int, list[Any]]] = []

    def request(self, who: int) -> Any:
        from vllm.v1.kv_offload.base import ReqContext

        context = ReqContext(str(who), {"venus_trajectory": who})
        for at, key in enumerate(self.keys[who]):
            context.set_offload_key_position(key, BLOCK * (at + 1))
        self.manager.on_new_request(context)
        return context

    def present(self, key: Any) -> bool:
        return self.policy.get(key) is not None

    @rule(who=st.integers(0, 3), length=st.integers(1, LONGEST))
    def store(self, who: int, length: int) -> None:
        keys = self.keys[who][:length]
        before = {key for row in self.keys for key in row if self.present(key)}
        held = {key: self.policy._chunks[key].ref_cnt for key in before}
        output = self.manager.prepare_store(keys, self.contexts[who])
        if output is None:
            new = [key for key in keys if key not in before]
            self.refused[who] |= set(new)
            idle = [key for key in before if held[key] == 0 and key not in keys]
            assert len(new) > self.CHUNKS - len(before) + len(idle), "there was room"
            return
        gone = set(output.evicted_keys)
        assert all(held[key] == 0 for key in gone), "a chunk that is copied has left"
        assert gone.isdisjoint(keys)
        self.used[who] |= {key for key in keys if key not in before or held[key] >= 0}
        if output.keys_to_store:
            self.writing.append((who, output.keys_to_store))

    @precondition(lambda self: self.writing)
    @rule(at=st.integers(0, 100), success=st.booleans())
    def end_store(self, at: int, success: bool) -> None:
        who, keys = self.writing.pop(at % len(self.writing))
        self.manager.complete_store(keys, self.contexts[who], success)
        assert all(self.present(key) == success for key in keys)

    @rule(who=st.integers(0, 3))
    def load(self, who: int) -> None:
        from vllm.v1.kv_offload.base import LookupResult

        hits = []
        for key in self.keys[who]:
            if self.manager.lookup(key, self.contexts[who]) is not LookupResult.HIT:
                break
            hits.append(key)
        if hits:
            self.manager.prepare_load(hits, self.contexts[who])
            self.reading.append((who, hits))
            self.used[who] |= set(hits)

    @precondition(lambda self: self.reading)
    @rule(at=st.integers(0, 100))
    def end_load(self, at: int) -> None:
        who, keys = self.reading.pop(at % len(self.reading))
        self.manager.complete_load(keys, self.contexts[who])

    @rule(who=st.integers(0, 3))
    def end_turn(self, who: int) -> None:
        self.manager.on_request_finished(self.contexts[who])
        self.contexts[who] = self.request(who)
        owners = [
            self.policy.order._chunks[key].owners
            for key in self.used[who]
            if key in self.policy.order
        ]
        assert all(who in owned for owned in owners)
        assert not self.refused[who] & self.policy._announced.keys(), "kept for ever"
        self.used[who].clear()
        self.refused[who].clear()

    @rule(ranks=st.permutations(range(4)), data=st.data())
    def decide(self, ranks: list[int], data: st.DataObject) -> None:
        self.step += 1
        self.ranks = dict(enumerate(ranks))
        self.gpu.clear()
        every = sorted({key for row in self.keys for key in row})
        self.gpu.update(data.draw(st.sets(st.sampled_from(every))))

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.writing.clear()
        self.reading.clear()
        self.used = [set() for _ in range(4)]
        self.refused = [set() for _ in range(4)]

    @invariant()
    def books_agree(self) -> None:
        assert not list(self.policy.faults())
        for _, keys in self.writing + self.reading:
            assert all(self.present(key) for key in keys)


TestManager = Manager.TestCase
TestManager.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_checker_finds_a_chunk_that_the_order_does_not_know() -> None:
    from vllm.v1.kv_offload.base import make_offload_key
    from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus

    policy = PriorityCachePolicy(2)
    for number in range(2):
        policy.insert(make_offload_key(b"%d" % number, 0), ChunkStatus(number))
    assert not list(policy.faults())
    policy.order.remove(make_offload_key(b"1", 0))
    assert [fault for fault in policy.faults() if "order" in fault]
    policy.insert(make_offload_key(b"2", 0), ChunkStatus(0))
    assert [fault for fault in policy.faults() if "room" in fault]
    assert [fault for fault in policy.faults() if "twice" in fault]


def test_a_store_that_found_no_room_leaves_nothing_behind() -> None:
    from vllm.v1.kv_offload.base import ReqContext, make_offload_key
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    manager = CPUOffloadingManager(1, PriorityCachePolicy.__name__, PriorityCachePolicy.__module__)
    policy: Any = manager._policy
    first, second = (ReqContext(name, {"venus_trajectory": 1}) for name in ("a", "b"))
    assert manager.prepare_store([make_offload_key(b"a", 0)], first) is not None
    assert manager.prepare_store([make_offload_key(b"b", 0)], second) is None  # a is being written
    assert len(policy._announced) == 1
    manager.on_request_finished(second)
    assert not policy._announced
