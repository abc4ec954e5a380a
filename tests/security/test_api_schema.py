"""Requests that schemathesis makes of the OpenAPI document, valid and not: every answer is one that
the document speaks of, and none is a fault of the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sandboxd.api.app import api_document
from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import ERROR_CLASSES
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_FRAMES, CONTENT_TYPE_TAR
from tests.support.daemon import DaemonProcess, serving
from tests.support.unix_requests import unix_session

EXAMPLES = int(os.environ.get("VENUS_SCHEMA_EXAMPLES", "9"))
TIMEOUT_S = 60.0
# Each bound is low, so that whatever is asked for stays small.
BOUNDS = {
    "max_sandboxes": "6",
    "max_sandboxes_per_tenant": "6",
    "max_queued_creates": "4",
    "max_forks_per_request": "2",
    "max_templates_per_tenant": "3",
    "max_execs_per_sandbox": "8",
    "max_memory_bytes": str(1 << 30),
    "max_exec_timeout_s": "2",
    "max_upload_bytes": str(1 << 20),
    "create_timeout_s": "5",
}
# By operation id, with what stands against trying them so.
LEFT_OUT = {
    "watch_directory": "its answer has no end",
    "follow_events": "its answer has no end",
    "import_image": "copies what lies at a path of the host, which may be all of it",
    "build_base": "downloads a Debian system",
    "pull_image": "asks whatever registry is named",
}
# Each of their requests may make sandboxes, or run a command.
DEAR = {
    "build_template",
    "create_sandbox",
    "follow_build",
    "fork_sandbox",
    "fork_template",
    "snapshot_sandbox",
    "start_command",
}
for media_type in (CONTENT_TYPE_FRAMES, CONTENT_TYPE_TAR):
    schemathesis.serializer.alias(media_type, CONTENT_TYPE_BYTES)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DOCUMENT = api_document()
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (
        each.ok() for each in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
    )
}


@pytest.fixture(scope="module")
def bounded(
    base_image_tar: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(f"venus-o{os.getpid()}", tmp_path_factory.mktemp("schema"), BOUNDS)
    with serving(daemon, base_image_tar):
        yield daemon


@pytest.fixture
def session(bounded: DaemonProcess) -> Iterator[requests.Session]:
    with unix_session(bounded.socket) as session:
        yield session


@pytest.fixture
def known(bounded: DaemonProcess) -> Iterator[dict[str, str]]:
    """Things that there are, by the name of the parameter that stands for one of their kind."""
    try:
        sandbox = Sandbox.create(socket=bounded.socket)
        template = sandbox.snapshot()
        patience = float(BOUNDS["max_exec_timeout_s"])
        sandbox.commands.run("sleep 1000", True, timeout=patience, keep=True)
        [command] = sandbox.commands.list()
        yield {
            "sandbox_id": sandbox.sandbox_id,
            "template_id": template.template_id,
            "exec_id": str(command.exec_id),
        }
    finally:
        for each in Sandbox.list(socket=bounded.socket):
            Sandbox.connect(each.id, socket=bounded.socket).kill()
        for kept in Template.list(socket=bounded.socket):
            Template.get(kept.id, socket=bounded.socket).remove()


def test_the_document_is_what_the_daemon_shows(session: requests.Session) -> None:
    assert session.get("http://sandboxd/v1/openapi.json").json() == DOCUMENT
    assert set(LEFT_OUT) < set(OPERATIONS)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(LEFT_OUT)))
def test_every_answer_is_as_the_document_says(
    name: str, session: requests.Session, known: dict[str, str], bounded: DaemonProcess
) -> None:
    operation = OPERATIONS[name]
    # What waits for a command to end would wait for one that does not.
    waits = name in ("attach", "wait_command")
    cases = st.one_of(*(operation.as_strategy(mode) for mode in GenerationMode))

    @settings(
        max_examples=EXAMPLES // 3 if name in DEAR else EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, real=st.booleans())
    def ask(case: Case, real: bool) -> None:
        if real and isinstance(case.path_parameters, dict):
            for parameter in case.path_parameters:
                if parameter in known and not (waits and parameter == "exec_id"):
                    case.path_parameters[parameter] = known[parameter]
        answer = case.call(base_url="http://sandboxd", session=session, timeout=TIMEOUT_S)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert ERROR_CLASSES[error["code"]].http_status == answer.status_code or (
                answer.status_code == 405
            ), error

    ask()
    with Daemon(bounded.socket) as daemon:
        daemon.check_health()
