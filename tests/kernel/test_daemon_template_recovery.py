"""Templates outlive the daemon: they come back whole, or are removed whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import LimitExceeded, NotFound
from tests.kernel.test_daemon_forks import number_of, start_counter
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import keeper_of, layers_of, records_of
from tests.support.keeper import Process

POOL_BYTES = 100 << 20
BALLAST = """
import os, time
ballast = os.urandom({size} << 20)
open("/tmp/ready", "w").close()
while True:
    time.sleep(1000)
"""


def held_by(daemon: DaemonProcess) -> set[str]:
    keeper = keeper_of(daemon)
    try:
        return {each.name for each in keeper.list()}
    finally:
        keeper.close()


def kill_keeper(daemon: DaemonProcess) -> None:
    keeper = keeper_of(daemon)
    process = Process(keeper.state().pid)
    keeper.close()
    os.kill(process.pid, signal.SIGKILL)
    assert process.ends()
    process.close()


def ids_of(daemon: DaemonProcess) -> set[str]:
    return {each.id for each in Template.list(socket=daemon.socket)}


@pytest.fixture
def counted(daemon: DaemonProcess) -> Iterator[Sandbox]:
    """A sandbox whose memory and files say how far it was."""
    with Sandbox.create(socket=daemon.socket) as sandbox:
        start_counter(sandbox)
        sandbox.files.write("/root/on-disk", "as it was")
        yield sandbox
    for info in Template.list(socket=daemon.socket):
        Template.get(info.id, socket=daemon.socket).remove()
    assert layers_of(daemon) == [] and records_of(daemon) == [] and held_by(daemon) == set()


def check_fork(template_id: str, daemon: DaemonProcess, at_least: int) -> None:
    [fork] = Template.get(template_id, socket=daemon.socket).fork()
    with fork:
        assert fork.files.read("/root/on-disk") == "as it was"
        first = number_of(fork)
        assert first >= at_least
        eventually(lambda: number_of(fork) > first, "the fork stands still")


def test_templates_come_back(daemon: DaemonProcess, counted: Sandbox) -> None:
    at_snapshot = number_of(counted)
    template = counted.snapshot({"which": "first"})
    [live] = template.fork()
    with live:
        second = live.snapshot()
        assert second.info.inherited_bytes > second.info.own_bytes
        infos = [template.info, second.info]
        for _ in range(2):  # and not only once
            daemon.kill()
            daemon.start()
            assert ids_of(daemon) == held_by(daemon) == {each.id for each in infos}
            for info in infos:
                assert Template.get(info.id, socket=daemon.socket).info == info
                check_fork(info.id, daemon, at_snapshot)
        # What an adopted fork has not written still is the template's.
        third = live.snapshot()
        assert third.info.inherited_bytes > third.info.own_bytes
        assert third.info.parent == template.template_id
    assert Template.get(template.template_id, socket=daemon.socket).remove()
    daemon.kill()
    daemon.start()
    assert ids_of(daemon) == {second.template_id, third.template_id}
    check_fork(third.template_id, daemon, at_snapshot)


def test_a_dead_keeper_is_replaced(daemon: DaemonProcess, counted: Sandbox) -> None:
    templates = [counted.snapshot() for _ in range(2)]
    kill_keeper(daemon)
    templates.append(counted.snapshot())
    templates.pop(0).remove()
    expected = {each.template_id for each in templates}
    assert held_by(daemon) == expected
    kill_keeper(daemon)
    templates.pop(0).remove()
    daemon.kill()
    daemon.start()
    [left] = templates
    assert ids_of(daemon) == held_by(daemon) == {left.template_id}
    check_fork(left.template_id, daemon, 1)


def test_what_cannot_be_had_back_is_removed(daemon: DaemonProcess, counted: Sandbox) -> None:
    lost, unreadable, unrecorded, cut, kept = (counted.snapshot().template_id for _ in range(5))
    daemon.kill()
    keeper = keeper_of(daemon)
    keeper.release(lost)
    records = daemon.state_dir / "templates"
    (records / f"{unreadable}.json").write_text("{")
    (records / f"{unrecorded}.json").unlink()
    (records / f"{cut}.json").rename(records / f"{cut}.tmp")
    with keeper.take(kept) as taken:
        keeper.hold("tp-of-nobody", taken.header, taken.descriptors)
    keeper.close()
    daemon.start()
    assert ids_of(daemon) == held_by(daemon) == {kept}
    assert records_of(daemon) == [f"{kept}.json"]
    assert len(layers_of(daemon)) == 1
    log = daemon.log()
    for template_id in (lost, unreadable, cut):
        assert f"removed template {template_id}" in log
        with pytest.raises(NotFound):
            Template.get(template_id, socket=daemon.socket)
    check_fork(kept, daemon, 1)


def test_pages_that_are_others_are_not_forked(daemon: DaemonProcess, counted: Sandbox) -> None:
    first, second = (counted.snapshot().template_id for _ in range(2))
    daemon.kill()
    keeper = keeper_of(daemon)
    with keeper.take(first) as mine, keeper.take(second) as other:
        keeper.release(first)
        keeper.hold(first, mine.header, [*mine.descriptors[:-1], other.descriptors[-1]])
    keeper.close()
    daemon.start()
    assert ids_of(daemon) == held_by(daemon) == {second}
    assert "its pages are not what was saved: adopt plan: it is another file" in daemon.log()


def test_without_daemon_and_keeper_nothing_is_left(daemon: DaemonProcess, counted: Sandbox) -> None:
    for _ in range(2):
        counted.snapshot()
    daemon.kill()
    kill_keeper(daemon)
    daemon.start()
    assert ids_of(daemon) == held_by(daemon) == set()
    assert layers_of(daemon) == [] and records_of(daemon) == []


@pytest.fixture(scope="module")
def small_pool(
    daemon: DaemonProcess,
    tmp_path_factory: pytest.TempPathFactory,
    base_image_tar: Path,
) -> Iterator[DaemonProcess]:
    process = DaemonProcess(
        f"venus-e{os.getpid()}",
        tmp_path_factory.mktemp("venus"),
        {"storage_backend": "plain", "pool_size_bytes": str(POOL_BYTES)},
    )
    with serving(process, base_image_tar):
        yield process


def with_ballast(daemon: DaemonProcess, mib: int) -> Sandbox:
    """Its snapshot is a little larger than that."""
    sandbox = Sandbox.create(socket=daemon.socket)
    sandbox.commands.run(f"python3 -c '{BALLAST.format(size=mib)}' > /dev/null 2>&1 < /dev/null &")
    eventually(
        lambda: sandbox.commands.run("test -e /tmp/ready", check=False).exit_code == 0, "not ready"
    )
    return sandbox


def test_idle_templates_go_for_new_ones(small_pool: DaemonProcess) -> None:
    def snapshot() -> Template:
        # Snapshots of one and the same sandbox would share what it does not write.
        with with_ballast(small_pool, 24) as sandbox:
            return sandbox.snapshot()

    first, second, third = (snapshot() for _ in range(3))
    assert ids_of(small_pool) == {each.template_id for each in (first, second, third)}
    [fork] = first.fork()
    fork.kill()
    fourth = snapshot()  # the second has not been used for longest
    assert ids_of(small_pool) == {each.template_id for each in (first, third, fourth)}
    [used] = third.fork()
    with used:
        # A fork in use keeps the pages, and its own snapshot needs no more of them.
        child = used.snapshot()
        assert child.info.own_bytes < 4 << 20
        fifth = snapshot()
        assert first.template_id not in ids_of(small_pool)
        assert {third.template_id, child.template_id} <= ids_of(small_pool)
    for template in (third, fourth, fifth, child):
        template.remove()
    assert layers_of(small_pool) == [] and held_by(small_pool) == set()


def pool_bytes_of(daemon: DaemonProcess) -> int:
    with Daemon(daemon.socket) as client:
        return client.info().pool_bytes


def test_what_is_kept_for_the_next_snapshot_goes_first(small_pool: DaemonProcess) -> None:
    with with_ballast(small_pool, 40) as one, with_ballast(small_pool, 40) as other:
        with pytest.raises(LimitExceeded), with_ballast(small_pool, 120) as large:
            large.snapshot()
        assert pool_bytes_of(small_pool) == 0
        one.snapshot().remove()
        assert pool_bytes_of(small_pool) > 40 << 20
        kept = one.snapshot()
        assert kept.info.own_bytes < 4 << 20
        second = other.snapshot()
        second.remove()
        # There is room for both only without what the other one's next snapshot would refer to.
        with with_ballast(small_pool, 40) as third:
            third.snapshot()
        assert kept.template_id in ids_of(small_pool)
        assert other.snapshot().info.own_bytes > 40 << 20
    for template in Template.list(socket=small_pool.socket):
        Template.get(template.id, socket=small_pool.socket).remove()
    assert pool_bytes_of(small_pool) == 0


def test_what_does_not_fit_is_refused_and_takes_nothing_with_it(small_pool: DaemonProcess) -> None:
    with with_ballast(small_pool, 24) as modest, with_ballast(small_pool, 120) as large:
        kept = modest.snapshot()
        for attempt in (large.snapshot, large.fork):
            with pytest.raises(LimitExceeded, match="page pool has no room"):
                attempt()
        assert ids_of(small_pool) == held_by(small_pool) == {kept.template_id}
        assert len(layers_of(small_pool)) == 1
        assert large.commands.run("echo lives").stdout == "lives\n"
        kept.remove()


@pytest.mark.parametrize("killed_before", [False, True])
def test_a_stopped_daemon_leaves_no_keeper(small_pool: DaemonProcess, killed_before: bool) -> None:
    with Sandbox.create(socket=small_pool.socket) as sandbox:
        sandbox.snapshot()
    keeper = keeper_of(small_pool)
    process = Process(keeper.state().pid)
    keeper.close()
    if killed_before:
        kill_keeper(small_pool)
    small_pool.stop()
    assert process.ends()
    process.close()
    assert small_pool.leftovers() == []
    assert not small_pool.run_dir.exists()
    small_pool.start()
    assert ids_of(small_pool) == set()
