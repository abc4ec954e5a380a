"""Limits of the host that sandboxes of one tenant share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.host_limits import PIPE_PAGES_PER_SANDBOX, raise_pipe_limit


@pytest.mark.parametrize(
    ("there", "sandboxes", "then"),
    [
        ("16384\n", 10, str(10 * PIPE_PAGES_PER_SANDBOX)),
        ("999999999\n", 10, "999999999\n"),
        ("0\n", 10, "0\n"),
    ],
)
def test_the_limit_of_pipes_is_only_raised(
    tmp_path: Path, there: str, sandboxes: int, then: str
) -> None:
    file = tmp_path / "limit"
    file.write_text(there)
    raise_pipe_limit(sandboxes, file)
    assert file.read_text() == then


def test_a_host_that_refuses_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raise_pipe_limit(10, tmp_path / "missing")
    assert "stay limited" in caplog.text
