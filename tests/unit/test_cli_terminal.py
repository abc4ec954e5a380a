"""How a person leaves a raw terminal."""

from __future__ import annotations

import pytest

from sandboxd.cli.terminal import LeaveKeys


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        (b"~.", b"", True),
        (b"ls\r~.", b"ls\r", True),
        (b"ls\n~.rest", b"ls\n", True),
        (b"ls ~.", b"ls ~.", False),
        (b"~x\r", b"~x\r", False),
        (b"~~.\r", b"~.\r", False),
        (b"~\r~.", b"~\r", True),
        (b"a~\r", b"a~\r", False),
    ],
)
@pytest.mark.parametrize("piece", [1, 100])
def test_only_at_the_start_of_a_line(typed: bytes, passed: bytes, leaves: bool, piece: int) -> None:
    keys, given = LeaveKeys(), b""
    for at in range(0, len(typed), piece):
        some, left = keys.feed(typed[at : at + piece])
        given += some
        if left:
            assert leaves
            break
    else:
        assert not leaves
    assert given == passed
