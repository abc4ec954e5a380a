"""Constants of an engine from what its steps took."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from venusrl.simulate.fitted import (  # noqa: E402
    ATTENDED,
    CPU_S,
    PREFILLED,
    Fit,
    fit,
    stretch,
)

TRUE = Fit(overhead_s=7e-3, floor_tokens=8, compute_s=4.5e-4, read_s=7e-7, attend_s=2e-7)


def steps_of(count, *, noise=0.0, seed=0):
    """As an engine makes them: some decode, some prefill, most do both."""
    random = np.random.default_rng(seed)
    decoded = random.integers(0, 17, count)
    prefilled = random.integers(0, 2, count) * random.integers(2, 256, count)
    prefilled[decoded == 0] += 20
    rows = np.zeros((count, 7))
    rows[:, 0], rows[:, 1] = decoded, decoded * random.integers(100, 1000, count)
    rows[:, PREFILLED], rows[:, ATTENDED] = prefilled, prefilled * random.integers(50, 900, count)
    rows[:, CPU_S] = TRUE.seconds(rows) * np.exp(noise * random.standard_normal(count))
    rows[:, 5], rows[:, 6] = 0.9 * rows[:, CPU_S], 1.8 * rows[:, CPU_S]
    return rows


def test_finds_the_constants_that_made_the_steps():
    found = fit(steps_of(400))
    assert found.floor_tokens == TRUE.floor_tokens
    assert found.compute_s == pytest.approx(TRUE.compute_s, rel=1e-6)
    assert found.overhead_s == pytest.approx(TRUE.overhead_s, rel=1e-6)
    assert found.read_s == pytest.approx(TRUE.read_s, rel=1e-4)
    assert found.attend_s == pytest.approx(TRUE.attend_s, rel=1e-4)


def test_steps_that_something_else_held_up_do_not_count():
    """Not by chance: those of long contexts. Attention would seem to cost twice as much."""
    rows = steps_of(400, noise=0.05)
    held_up = np.argsort(rows[:, ATTENDED])[-40:]
    rows[held_up, CPU_S] *= 2
    found = fit(rows)
    assert found.attend_s == pytest.approx(TRUE.attend_s, rel=0.05)
    assert np.median(found.errors(steps_of(200, seed=1))) < 0.02


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="20 steps are too few"):
        fit(steps_of(20))


def test_an_engine_is_slower_on_the_wall_than_on_the_processor():
    rows = steps_of(100)
    assert stretch(rows) == pytest.approx(2.0)
    sizes = {"kv_capacity": 900, "step_tokens": 256, "max_running": 32, "block_tokens": 32}
    model = TRUE.model(**sizes, stretch=stretch(rows))
    assert model.compute_s == pytest.approx(2 * TRUE.compute_s)
    assert model.weights_s == pytest.approx(2 * 8 * TRUE.compute_s)
    assert (model.kv_capacity, model.host_capacity, model.block_tokens) == (900, 0, 32)
