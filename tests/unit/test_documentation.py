"""docs/operations.md says what the code does: errors, bounds, settings, faults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd import events, file_operation, file_ops, listing, population, ports, protocol
from sandboxd.api import app, bounded_protocol, models, models_templates, server
from sandboxd.bounds import MIN_LEASE_TTL_S
from sandboxd.config import Config
from sandboxd.errors import ERROR_CLASSES
from sandboxd.metrics.counters import ServiceCounters
from sandboxd.metrics.families import families
from sandboxd.metrics.instruments import Instruments
from tests.unit.test_metrics import FIGURES

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

BOUNDS = {
    "line and headers": f"{bounded_protocol.MAX_HEAD_BYTES >> 10} KiB",
    "JSON body": f"{app.MAX_JSON_BODY_BYTES >> 20} MiB",
    "connections of one tenant": f"{server.MAX_CONNECTIONS_PER_TENANT}",
    "labels of a sandbox, template or lease": f"{models.MAX_LABELS}",
    "a label's name; its value": "128 characters; 1024",
    "labels that a list or stream is filtered by": f"{listing.MAX_LABEL_FILTERS}",
    "environment of a sandbox": (
        f"{models.MAX_ENV_ENTRIES} variables, {models.MAX_ENV_BYTES >> 10} KiB"
    ),
    "sandboxes in one page of a list": f"{listing.MAX_PAGE}",
    "steps of each kind in a recipe": f"{models_templates.MAX_STEPS}",
    "time of a recipe's step": f"{models_templates.MAX_STEP_TIMEOUT_S:.0f} s",
    "a path": f"{file_operation.MAX_PATH_BYTES} bytes",
    "levels of a list of files": f"{file_ops.MAX_LIST_DEPTH}",
    "entries of a list of files": f"{file_ops.MAX_LIST_ENTRIES}",
    "a file operation": f"{file_ops.OPERATION_TIMEOUT_MS // 1000} s",
    "a transfer of a file or directory": f"{file_ops.TRANSFER_TIMEOUT_MS // 1000} s",
    "time of a lease": f"at least {MIN_LEASE_TTL_S:.0f} s",
    "input that comes with a command": f"{protocol.MAX_INLINE_STDIN_BYTES >> 20} MiB",
    "waiting for a command's end": f"{protocol.MAX_WAIT_S:.0f} s",
    "connections to ports of a sandbox": f"{ports.MAX_CONNECTIONS_PER_SANDBOX}",
    "connections to ports of all sandboxes": f"{ports.MAX_CONNECTIONS}",
    "connecting to a port": f"{ports.CONNECT_TIMEOUT_S:.0f} s",
    "a connection to a port that carries nothing": f"{ports.IDLE_TIMEOUT_S:.0f} s",
    "events that are kept": f"{events.CAPACITY}",
    "streams of events of one tenant": f"{events.MAX_FOLLOWERS_PER_TENANT}",
    "reasons of ends that are remembered": f"{population.REMEMBERED_ENDS}",
}


def rows(heading: str) -> list[list[str]]:
    """Cells of all tables of a section, without their heads."""
    section = OPERATIONS.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        lines = [line.strip("|").split(" | ") for line in table.splitlines()]
        found += [[cell.strip() for cell in line] for line in lines[2:]]
    return found


def test_every_error_is_documented_with_its_status_and_exception() -> None:
    documented = {
        code.strip("`"): (int(status), exception.strip("`"))
        for code, status, exception, _ in rows("When something is wrong")
    }
    assert documented == {
        code: (each.http_status, each.__name__) for code, each in ERROR_CLASSES.items()
    }


def test_every_bound_is_documented_as_it_is() -> None:
    assert {row[0]: row[1] for row in rows("Bounds")} == BOUNDS


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Config)])
def test_every_setting_is_documented(name: str) -> None:
    assert re.search(rf"`{name}`", OPERATIONS), f"docs/operations.md does not mention {name}"


def test_every_metric_is_documented_and_no_other() -> None:
    table = [row[0] for row in rows("Metrics")]
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == {
        family.name for family in families(FIGURES, vars(ServiceCounters()), Instruments())
    }


def test_every_row_of_the_faults_names_a_test_that_there_is() -> None:
    named = [re.search(r"`(test_\w+\.py)::(\w+)`", row[2]) for row in rows("Faults")]
    assert named
    for found in named:
        assert found is not None
        source = (ROOT / "tests" / "kernel" / found[1]).read_text()
        assert f"def {found[2]}(" in source, found[0]
