"""A row of steps is all or nothing, wherever it fails."""

from __future__ import annotations

import pytest

from sandboxd.launch_steps import Step, do_all, undo_all

pytestmark = pytest.mark.unit


class Row:
    """Steps that put their number into a set, and can fail before or after doing so."""

    def __init__(self, length: int) -> None:
        self.present: set[int] = set()
        self.undone: list[int] = []
        self.fail_do: tuple[int, str] | None = None
        self.fail_undo: set[int] = set()
        self.steps = [self._step(number) for number in range(length)]

    def _step(self, number: int) -> Step[None]:
        def do(_: None) -> None:
            if self.fail_do == (number, "before"):
                raise RuntimeError(f"do {number}")
            self.present.add(number)
            if self.fail_do == (number, "after"):
                raise RuntimeError(f"do {number}")

        def undo(_: str) -> None:
            self.undone.append(number)
            if number in self.fail_undo:
                raise RuntimeError(f"undo {number}")
            self.present.discard(number)

        return Step(f"step {number}", do, undo)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failing", range(4))
def test_a_failure_leaves_nothing_and_touches_nothing_later(failing: int, when: str) -> None:
    row = Row(4)
    row.fail_do = (failing, when)
    with pytest.raises(RuntimeError, match=f"do {failing}"):
        do_all(row.steps, None, "id")
    assert row.present == set()
    assert row.undone == list(range(failing, -1, -1))


def test_undo_goes_on_after_a_failure_and_raises_the_first() -> None:
    row = Row(4)
    do_all(row.steps, None, "id")
    row.fail_undo = {1, 3}
    with pytest.raises(RuntimeError, match="undo 3") as failure:
        undo_all(row.steps, "id")
    assert row.undone == [3, 2, 1, 0]
    assert row.present == {1, 3}
    assert any("undo 1" in note for note in failure.value.__notes__)


def test_a_failure_while_undoing_does_not_hide_the_cause() -> None:
    row = Row(3)
    row.fail_do, row.fail_undo = (2, "after"), {0}
    with pytest.raises(RuntimeError, match="do 2") as failure:
        do_all(row.steps, None, "id")
    assert any("undo 0" in note for note in failure.value.__notes__)
