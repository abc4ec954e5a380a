import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.client import ExitReason
from venusrl.episode.observation import cut, render, render_error

pytestmark = pytest.mark.unit


def test_short_output_is_shown_to_the_byte() -> None:
    assert render(b"a\xff\n", ExitReason.EXITED, budget_bytes=3) == b"a\xff\n"


def test_long_output_keeps_both_ends_and_says_how_much_is_missing() -> None:
    shown = cut(b"a" * 500 + b"b" * 500, 100)
    assert len(shown) <= 100
    assert shown.startswith(b"aaa")
    assert shown.endswith(b"bbb")
    missing = 1000 - shown.count(b"a" * 10) * 10
    assert b" bytes cut]\n" in shown
    assert missing > 800


def test_output_that_the_daemon_cut_is_marked_even_if_it_fits() -> None:
    assert cut(b"a" * 40, 100, total_bytes=10_000) == b"a" * 40 + b"\n[9960 bytes cut]\n"


@given(st.binary(max_size=300), st.integers(min_value=40, max_value=200), st.integers(0, 10**9))
def test_the_budget_holds_and_the_mark_is_true(output: bytes, budget: int, more: int) -> None:
    total = len(output) + more
    shown = cut(output, budget, total_bytes=total)
    assert len(shown) <= budget
    if total <= budget:
        assert shown == output
    else:
        number = int(shown.split(b" bytes cut]\n")[-2].rsplit(b"[", 1)[1])
        mark = len(f"\n[{number} bytes cut]\n")
        assert len(shown) - mark + number == total


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (ExitReason.TIMEOUT, b"took too long"),
        (ExitReason.OOM, b"out of memory"),
        (ExitReason.KILLED, b"was killed"),
    ],
)
def test_an_unusual_end_is_told(reason: ExitReason, words: bytes) -> None:
    shown = render(b"partial", reason, budget_bytes=100)
    assert shown.startswith(b"partial\nerror: ")
    assert words in shown


def test_errors_of_the_action_itself() -> None:
    assert render_error("more than one line") == b"error: more than one line\n"
