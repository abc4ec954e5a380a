"""Fixtures and rules for all tests.

Every test is marked with its part, the directory under tests/ that it lies in. With
VENUS_STRICT_SKIPS set (./venus test sets it), a skipped test fails unless expected_skips.txt
lists it: a machine that silently cannot run a test must not look like one that passed it.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess, serving

# A shell lets what it runs in the background ignore interrupts, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is no defect.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

TESTS = Path(__file__).parent
PARTS = (
    "unit",
    "kernel",
    "integration",
    "fidelity",
    "programs",
    "security",
    "e2b",
    "providers",
    "rl",
    "native",
)
# They have an environment of their own, in which ./venus test runs them.
collect_ignore = [] if importlib.util.find_spec("inspect_ai") else ["providers"]
STRICT_SKIPS = os.environ.get("VENUS_STRICT_SKIPS") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        part = Path(item.path).relative_to(TESTS).parts[0]
        if part in PARTS:
            item.add_marker(part)


def _expected_skips() -> list[str]:
    lines = (TESTS / "expected_skips.txt").read_text().splitlines()
    return [line.split("|")[0].strip() for line in lines if line and not line.startswith("#")]


EXPECTED_SKIPS = _expected_skips()


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not STRICT_SKIPS or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    if any(fnmatch.fnmatch(report.nodeid, pattern) for pattern in EXPECTED_SKIPS):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"unexpected skip (tests/expected_skips.txt does not list it): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture(scope="session")
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


def _image_tar(variable: str, subcommand: str) -> Path:
    """The tar that the environment names, or that ./venus makes, once per machine."""
    given = os.environ.get(variable)
    if given and Path(given).exists():
        return Path(given)
    done = subprocess.run(
        ["bash", str(TESTS.parent / "venus"), subcommand],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def base_image_tar(needs_root: None) -> Path:
    """A small Debian root filesystem with python3 and procps."""
    return _image_tar("VENUS_BASE_TAR", "base-image")


@pytest.fixture(scope="session")
def programs_image_tar(needs_root: None) -> Path:
    """A Debian root filesystem with bash, numpy, redis, Node and PostgreSQL."""
    return _image_tar("VENUS_PROGRAMS_TAR", "programs-image")


@pytest.fixture(scope="session")
def daemon(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """One daemon for the session, with the image `base`; it must leave nothing behind."""
    process = DaemonProcess(f"venus-t{os.getpid()}", tmp_path_factory.mktemp("venus"))
    with serving(process, base_image_tar):
        yield process


@pytest.fixture
def sandbox(daemon: DaemonProcess) -> Iterator[Sandbox]:
    """A fresh sandbox with default limits."""
    with Sandbox.create(socket=daemon.socket) as sandbox:
        yield sandbox
