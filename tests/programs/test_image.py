"""The image of real programs is what it says."""

from __future__ import annotations

import pytest

from sandboxd.client import Sandbox

VERSIONS = {
    "bash --version": "GNU bash",
    "python3 -c 'import numpy; print(numpy.__name__)'": "numpy",
    "redis-server --version": "Redis server",
    "node --version": "v",
    "/usr/lib/postgresql/15/bin/postgres --version": "postgres (PostgreSQL)",
}


@pytest.mark.parametrize("command", VERSIONS)
def test_program_runs(command: str, programs_sandbox: Sandbox) -> None:
    assert programs_sandbox.commands.run(command).stdout.startswith(VERSIONS[command])
