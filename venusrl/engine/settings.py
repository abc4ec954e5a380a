"""What a caller sets, looked at where it is set, and not where it would stop an engine later."""

from __future__ import annotations

from numbers import Integral, Real


def require_counts(owner: str, least: int, **given: object) -> None:
    """ValueError for what is no whole number, or less than `least`."""
    for name, value in given.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not (whole and value >= least):  # type: ignore[operator]
            raise ValueError(f"{owner}: {name} is {value!r}, not a whole number from {least} on")


def require_numbers(owner: str, *, above: float | None = None, **given: object) -> None:
    """ValueError for what is no number, is not above `above`, or is negative."""
    for name, value in given.items():
        real = isinstance(value, Real) and not isinstance(value, bool)
        # Written so that NaN is refused.
        if not (real and (value >= 0 if above is None else value > above)):  # type: ignore[operator]
            bound = "a number from 0 on" if above is None else f"a number above {above:g}"
            raise ValueError(f"{owner}: {name} is {value!r}, not {bound}")
