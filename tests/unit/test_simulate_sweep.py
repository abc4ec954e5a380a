"""The search for best settings, and the statistics of paired runs."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from venusrl.simulate.contenders import ASYNC_FACTOR, CAP, Ladder  # noqa: E402
from venusrl.simulate.measure import by_decile, interval, paired_ratio  # noqa: E402
from venusrl.simulate.sweep import tune  # noqa: E402


class TestTune:
    @pytest.mark.parametrize("best_cap", [6, 30, 50, 400])
    def test_the_best_lies_inside_what_was_tried(self, best_cap):
        found = tune({"cap": CAP}, lambda s: -abs(math.log(s["cap"] / best_cap)))
        tried = sorted(settings["cap"] for settings, _ in found.tried)
        assert found.finished
        assert tried[0] < found.settings["cap"] < tried[-1]
        assert found.settings["cap"] == pytest.approx(best_cap, rel=0.13)

    def test_settings_that_depend_on_each_other(self):
        def value(settings):
            cap, factor = settings["cap"], settings["async_factor"]
            return -((math.log(cap / (40 * factor))) ** 2) - (factor - 2.25) ** 2

        found = tune({"cap": CAP, "async_factor": ASYNC_FACTOR}, value)
        assert found.settings["async_factor"] == pytest.approx(2.25, abs=0.25)

    def test_a_natural_end_may_be_best(self):
        found = tune({"f": Ladder(first=1.5, step=0.25, lowest=1.0)}, lambda s: -s["f"])
        assert found.settings == {"f": 1.0}

    def test_what_is_not_possible_is_not_chosen(self):
        def value(settings):
            if settings["f"] > 2:
                raise ValueError("no")
            return settings["f"]

        found = tune({"f": Ladder(first=1.5, step=0.25)}, value)
        assert found.settings == {"f": 2.0}

    def test_the_limit_is_said(self):
        found = tune({"f": Ladder(first=1.0, ratio=1.01)}, lambda s: s["f"], limit=5)
        assert not found.finished


class TestStatistics:
    def test_interval(self):
        found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
        # 2.776 · 1.5811 / √5
        assert found.low == pytest.approx(3 - 1.963, abs=0.001)
        assert found.high == pytest.approx(3 + 1.963, abs=0.001)
        assert interval([2.0]).low == -math.inf

    def test_pairs_cancel_what_they_share(self):
        theirs = [1.0, 2.0, 4.0]
        found = paired_ratio([1.5, 3.0, 6.0], theirs)
        assert (found.mean, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))

    def test_deciles(self):
        edges = np.arange(1, 10) * 10
        assert by_decile(np.asarray([5, 15, 15, 95, 1000]), edges).tolist() == [
            1, 2, 0, 0, 0, 0, 0, 0, 0, 2,
        ]  # fmt: skip
