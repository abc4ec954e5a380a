"""The metrics of a real daemon, as Prometheus' own parser reads them, before and after what they
count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

import sandboxd
from sandboxd.client import Daemon, Sandbox
from sandboxd.errors import LimitExceeded, NotFound
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving
from tests.support.unix_requests import unix_session

MIB = 1 << 20
MAX_SANDBOXES = 4
Samples = dict[str, float]


@pytest.fixture(scope="module")
def measured(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon that Prometheus may ask, and in which few things go on."""
    settings = {"metrics_listen": "127.0.0.1:0", "max_sandboxes": str(MAX_SANDBOXES)}
    daemon = DaemonProcess(f"venus-m{os.getpid()}", tmp_path_factory.mktemp("metrics"), settings)
    with serving(daemon, base_image_tar):
        yield daemon


def url(daemon: DaemonProcess) -> str:
    [(host, port)] = re.findall(r"metrics: address (\S+) port (\d+)", daemon.log_path.read_text())
    return f"http://{host}:{port}"


def parsed(text: str) -> Samples:
    """Samples by `name{label=value}`."""
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()):
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def scraped(daemon: DaemonProcess) -> Samples:
    answer = requests.get(f"{url(daemon)}/metrics", timeout=60)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.text)


def grown(before: Samples, after: Samples) -> Samples:
    """What has changed, buckets and the daemon's own process aside."""
    return {
        name: after[name] - before[name]
        for name in after
        if after[name] != before[name] and "_bucket" not in name and not name.startswith("process_")
    }


def test_the_socket_and_the_address_tell_the_same(measured: DaemonProcess) -> None:
    over_tcp = scraped(measured)
    with unix_session(measured.socket) as session:
        answer = session.get("http://sandboxd/metrics", timeout=60)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    over_unix = parsed(answer.text)
    assert set(over_unix) == set(over_tcp)
    [build] = [name for name in over_tcp if name.startswith("venus_build_info")]
    assert f"{{version={sandboxd.__version__}}}" in build
    assert over_tcp["process_resident_memory_bytes"] > 10 * MIB
    assert over_tcp["process_max_fds"] > over_tcp["process_open_fds"] > 0


def test_lives_and_commands_are_counted_and_timed(measured: DaemonProcess) -> None:
    start = scraped(measured)
    with Sandbox.create(socket=measured.socket, memory_bytes=64 * MIB) as sandbox:
        created = scraped(measured)
        assert sandbox.commands.run("exit 3", check=False).exit_code == 3
        with sandbox.commands.run("sleep 1000", True):
            running = scraped(measured)
        sandbox.pause()
        paused = scraped(measured)
        sandbox.resume()
    eventually(lambda: scraped(measured)["venus_commands"] == 0, "the command is not over")
    end = grown(start, scraped(measured))
    private = grown(start, created).pop("venus_memory_private_bytes")
    assert 0 < private < 64 * MIB
    made = grown(start, created)
    assert made.pop("venus_create_duration_seconds_sum{pool=empty}") > 0
    assert made.pop("venus_create_wait_seconds_sum") > 0
    del made["venus_memory_private_bytes"]
    assert made == {
        "venus_sandboxes_created_total": 1,
        "venus_sandboxes{state=running}": 1,
        "venus_memory_committed_bytes": 64 * MIB,
        "venus_create_duration_seconds_count{pool=empty}": 1,
        "venus_create_wait_seconds_count": 1,
    }
    assert grown(created, running)["venus_execs_started_total"] == 2
    assert grown(created, running)["venus_exec_start_duration_seconds_count"] == 2
    assert grown(created, running)["venus_commands"] == 1
    changed = grown(running, paused)
    assert changed["venus_sandboxes{state=running}"] == -1
    assert changed["venus_sandboxes{state=paused}"] == 1
    assert end["venus_sandboxes_destroyed_total"] == 1
    assert end["venus_sandboxes_ended_total{reason=destroyed}"] == 1
    assert end["venus_destroy_duration_seconds_count"] == 1
    assert end["venus_destroy_duration_seconds_sum"] > 0
    assert "venus_sandboxes{state=running}" not in end
    assert "venus_memory_committed_bytes" not in end


def test_snapshots_forks_and_what_they_share_are_told(measured: DaemonProcess) -> None:
    hold = "keep = bytearray(b'x' * (16 << 20)); print('up', flush=True); input()"
    start = scraped(measured)
    with Sandbox.create(socket=measured.socket) as sandbox:
        with sandbox.commands.run(["python3", "-c", hold], True, stdin=True) as handle:
            assert next(iter(handle)).data == b"up\n"
            template = sandbox.snapshot()
    shared = template.info.shared_bytes
    forks = template.fork(count=2)
    forked = grown(start, scraped(measured))
    for fork in forks:
        fork.kill()
    template.remove()
    end = grown(start, scraped(measured))
    assert forked["venus_snapshots_total"] == 1
    assert forked["venus_snapshot_duration_seconds_count"] == 1
    assert forked["venus_sandboxes_forked_total"] == 2
    assert forked["venus_fork_duration_seconds_count{pool=empty}"] == 1
    assert forked["venus_templates"] == 1
    assert forked["venus_page_pool_bytes"] == shared > 16 * MIB
    assert forked["venus_memory_shared_bytes"] == 2 * shared
    assert "venus_page_pool_bytes" not in end and "venus_memory_shared_bytes" not in end


def test_failures_are_counted_by_their_code(measured: DaemonProcess) -> None:
    start = scraped(measured)
    made = [Sandbox.create(socket=measured.socket) for _ in range(MAX_SANDBOXES)]
    with pytest.raises(LimitExceeded):
        Sandbox.create(socket=measured.socket)
    with pytest.raises(NotFound):
        Sandbox.connect("sb-nobody", socket=measured.socket)
    taken = "x = bytearray(b'x' * (1 << 30))"
    hungry = made[0].commands.run(["python3", "-c", taken], check=False)
    for sandbox in made:
        sandbox.kill()
    end = grown(start, scraped(measured))
    assert hungry.exit_code != 0
    assert end["venus_creates_refused_total"] == 1
    assert end["venus_errors_total{code=limit_exceeded}"] == 1
    assert end["venus_errors_total{code=not_found}"] == 1
    assert end["venus_oom_kills_total"] == 1
    assert not any("{code=internal}" in name for name in end)


def test_what_a_client_names_makes_no_series(measured: DaemonProcess) -> None:
    before = scraped(measured)
    with Sandbox.create(
        socket=measured.socket, metadata={"name": "chosen"}, hostname="chosen"
    ) as sandbox:
        with Daemon(measured.socket) as client, pytest.raises(NotFound):
            client.remove_image("chosen")
        sandbox.commands.run(["echo", "chosen"])
        after = scraped(measured)
    assert set(after) == set(before)
    assert "chosen" not in "".join(after) and sandbox.sandbox_id not in "".join(after)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/sandboxes", 404), ("POST", "/metrics", 405)],
)
def test_the_address_serves_nothing_else(
    measured: DaemonProcess, method: str, path: str, status: int
) -> None:
    answer = requests.request(method, url(measured) + path, timeout=60)
    assert answer.status_code == status
