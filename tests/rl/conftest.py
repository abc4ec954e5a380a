"""What tests of vLLM's schedulers without an engine share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration is read, and nobody runs it."""
    from tests.support.random_model import random_model
    from tests.support.vllm_scheduler import CONTEXT

    place = tmp_path_factory.mktemp("scheduler") / "model"
    random_model(place, 3, tied=False, positions=CONTEXT)
    return place
