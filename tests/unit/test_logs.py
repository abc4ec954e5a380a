"""Lines of the log: one for each record whatever is in it, bounded, and with what it is about."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.api.failure import note_failure
from sandboxd.errors import InternalError, NotFound, StorageFull
from sandboxd.events import EventLog
from sandboxd.logs import lives, rate
from sandboxd.logs.fields import MAX_VALUE_CHARACTERS, about, checked_request_id, request_id
from sandboxd.logs.formats import (
    MAX_MESSAGE_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    JsonFormatter,
    TextFormatter,
)
from sandboxd.metrics.instruments import Instruments

FORGED = "x\n2030-01-01 00:00:00,000 ERROR sandboxd: forged\r\u2028\x1b[2J\u202e\ud800"
BEGIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def record(message: str, *arguments: object, **more: Any) -> logging.LogRecord:
    found = logging.LogRecord("sandboxd", logging.INFO, "file.py", 1, message, arguments, None)
    found.__dict__.update(more)
    return found


def raised(error: Exception) -> Any:
    try:
        raise error
    except Exception:
        return sys.exc_info()


def as_json(found: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(found)
    assert line.isascii() and line.isprintable()
    value: dict[str, Any] = json.loads(line)
    return value


@given(st.text(), st.text(), st.text())
def test_a_record_is_one_line_whatever_is_in_it(text: str, name: str, value: str) -> None:
    found = record("said %s", text + FORGED, **about(labels={name: value + FORGED}, object=FORGED))
    line = TextFormatter().format(found)
    assert len(line.splitlines()) == 1 and line.isprintable()
    assert "\\n2030-01-01" in line
    assert as_json(found)["labels"] == {name: (value + FORGED)[:MAX_VALUE_CHARACTERS]}


def test_lines_of_a_traceback_look_like_no_record() -> None:
    found = record("failed", exc_info=raised(ValueError(FORGED)))
    first, *below = TextFormatter().format(found).split("\n")
    assert BEGIN.match(first) and below
    assert all(each.startswith("    ") and each.isprintable() for each in below)
    assert "forged" in as_json(found)["traceback"]


def test_lines_are_bounded() -> None:
    huge = "y" * 1_000_000
    found = record("%s", huge, exc_info=raised(ValueError(huge)), **about(object=huge))
    bound = MAX_MESSAGE_CHARACTERS + MAX_TRACEBACK_CHARACTERS + MAX_VALUE_CHARACTERS + 1000
    assert len(TextFormatter().format(found)) < bound
    assert len(JsonFormatter().format(found)) < bound


def test_json_has_what_the_record_is_about() -> None:
    found = record("made %s", "sb-1", created=1.5, msecs=500.0, **about(sandbox="sb-1", lease=""))
    assert as_json(found) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "sandboxd",
        "message": "made sb-1",
        "sandbox": "sb-1",
    }


def test_nobody_takes_the_place_of_what_a_line_has_itself() -> None:
    assert as_json(record("true", **about(message="forged", level="none")))["message"] == "true"


@pytest.mark.parametrize("raising", [False, True])
def test_an_error_brings_its_code_and_operation(raising: bool) -> None:
    error = StorageFull("no room", operation="create sandbox", object="sb-2", cause="ENOSPC")
    found = record("x", exc_info=raised(error)) if raising else record("it failed: %s", error)
    line = as_json(found)
    assert (line["code"], line["operation"], line["object"]) == (
        "storage_full",
        "create sandbox",
        "sb-2",
    )
    assert 'operation="create sandbox"' in TextFormatter().format(found).split("\n")[0]


def test_a_line_names_the_request_that_it_belongs_to() -> None:
    token = request_id.set("r-7")
    try:
        assert as_json(record("x"))["request"] == "r-7"
    finally:
        request_id.reset(token)
    assert "request" not in as_json(record("x"))


@pytest.mark.parametrize(
    ("given_", "taken"),
    [
        (b"a-B_9.:", "a-B_9.:"),
        (b"", ""),
        (b"a b", ""),
        (b"a\nb", ""),
        (b"\xff", ""),
        (b"a" * 65, ""),
    ],
)
def test_what_a_request_may_be_called(given_: bytes, taken: str) -> None:
    assert checked_request_id(given_) == taken


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_place_may_log_only_so_much() -> None:
    clock = Clock()
    limit = rate.RateLimit(clock, frozenset({"free"}))
    burst = int(rate.BURST)
    assert sum(limit.filter(record("x")) for _ in range(burst + 50)) == burst
    other = record("x")
    other.lineno = 2
    assert limit.filter(other)
    free = record("x")
    free.name = "free"
    assert all(limit.filter(free) for _ in range(2 * burst))
    clock.now += 1 / rate.LINES_PER_S
    back = record("x")
    assert limit.filter(back)
    assert as_json(back)["suppressed"] == 50
    clock.now += 1e6
    assert sum(limit.filter(record("x")) for _ in range(burst + 50)) == burst


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_daemon_writes_so_much_to_its_standard_error(kind: str) -> None:
    """In a process of its own, because the log is the process's."""
    program = f"""
import logging
from sandboxd.config import load_config
from sandboxd.logs.setup import set_up
set_up(load_config(environment={{}}, overrides={{"log_format": {kind!r}}}))
for _ in range(10_000):
    logging.getLogger("sandboxd").warning("again\\n%s", {FORGED[:-1]!r})
logging.getLogger("sandboxd").debug("not asked for")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    written = done.stderr.splitlines()
    assert rate.BURST <= len(written) < 10_000
    for line in written:
        assert json.loads(line)["level"] == "warning" if kind == "json" else BEGIN.match(line)


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the daemon's loggers write."""
    found: list[dict[str, Any]] = []

    class Taking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(as_json(record))

    logger, handler = logging.getLogger("sandboxd"), Taking()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_lives_are_logged_with_what_they_belong_to(lines: list[dict[str, Any]]) -> None:
    async def scenario() -> None:
        events = EventLog()
        logging_ = asyncio.ensure_future(lives.log_lives(events, ("trajectory",)))
        await asyncio.sleep(0)
        request_id.set("r-1")
        own = {"trajectory": "t-1" + FORGED, "message": "forged"}
        for kind, details in (
            ("created", {"image": "base"}),
            ("exec", {"exec_id": 1}),
            ("snapshot", {"template": "tp-2"}),
            ("killed", {"reason": "oom"}),
            ("killed", {"reason": "destroyed"}),
        ):
            events.emit(kind, "sb-1", 7, own, details, lease="ls-1", template="tp-1")
        events.close()
        request_id.set("")
        await logging_

    asyncio.run(scenario())
    assert [line["event"] for line in lines] == ["created", "snapshot", "killed", "killed"]
    common = {"sandbox": "sb-1", "tenant": 7, "lease": "ls-1"}
    for line in lines:
        assert common.items() <= line.items()
        assert line["labels"] == {"trajectory": "t-1" + FORGED}
    assert [line["template"] for line in lines] == ["tp-1", "tp-2", "tp-1", "tp-1"]
    # Of what happens by itself it is not known to whose request it belongs.
    assert [line.get("request") for line in lines] == ["r-1", "r-1", None, "r-1"]


def test_what_the_log_could_not_keep_up_with_is_told(lines: list[dict[str, Any]]) -> None:
    async def scenario() -> None:
        events = EventLog(capacity=4)
        logging_ = asyncio.ensure_future(lives.log_lives(events, ()))
        await asyncio.sleep(0)
        for _ in range(10):
            events.emit("created", "sb-1", 7, {}, {})
        events.close()
        await logging_

    asyncio.run(scenario())
    assert [line["event"] for line in lines] == ["missed", *["created"] * 4]
    assert lines[0]["count"] == 6


def test_faults_of_the_daemon_are_the_logs_matter_and_mistakes_are_not(
    lines: list[dict[str, Any]],
) -> None:
    instruments = Instruments()
    for error in (NotFound("no"), InternalError("a fault"), StorageFull("full")):
        note_failure(instruments, error, 7)
    assert [(line["code"], line["tenant"]) for line in lines] == [
        ("internal", 7),
        ("storage_full", 7),
    ]
    assert instruments.errors["not_found"] == 1
