"""Inspect's own checks of a sandbox provider, all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxd.providers.inspect_sandbox import VenusSandboxEnvironment

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox_env() -> AsyncIterator[VenusSandboxEnvironment]:
    environments = await VenusSandboxEnvironment.sample_init("self check", None, {})
    yield environments["default"].as_type(VenusSandboxEnvironment)
    await VenusSandboxEnvironment.sample_cleanup("self check", None, environments, False)
