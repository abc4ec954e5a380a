"""The control plane, through the SDK for threads."""

from __future__ import annotations

import datetime
import uuid

import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
)
from e2b.exceptions import SandboxNotRunningException

from tests.e2b.conftest import DISK_BYTES, OTHER_KEY, ROOT_KEY


def listed(**query: object) -> list[str]:
    """Ids of all pages."""
    paginator = Sandbox.list(query=SandboxQuery(**query), limit=1)  # type: ignore[arg-type]
    found = []
    while paginator.has_next:
        found += [each.sandbox_id for each in paginator.next_items()]
    return found


def test_create_tells_of_a_sandbox_and_kill_ends_it() -> None:
    sandbox = Sandbox.create(
        timeout=120, metadata={"task": "a b/ü"}, envs={"GREETING": "hello there"}
    )
    try:
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.template_id == "base"
        assert info.metadata == {"task": "a b/ü"}
        assert info.state == SandboxState.RUNNING
        assert info.end_at - info.started_at <= datetime.timedelta(seconds=121)
        assert sandbox.is_running()
        assert sandbox.commands.run("echo $GREETING").stdout == "hello there\n"
    finally:
        assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("/etc/hostname")
    with pytest.raises(NotFoundException):
        sandbox.get_info()


def test_connect_gives_the_same_sandbox(sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/mark", "here")
    again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert again.files.read("/tmp/mark") == "here"
    assert again.sandbox_id == sandbox.sandbox_id


def test_connect_lengthens_a_life_and_never_shortens_it(sandbox: Sandbox) -> None:
    before = sandbox.get_info().end_at
    sandbox.connect(timeout=10)
    assert abs(sandbox.get_info().end_at - before) < datetime.timedelta(seconds=1)
    sandbox.connect(timeout=3000)
    assert sandbox.get_info().end_at - before > datetime.timedelta(seconds=2000)


def test_set_timeout_counts_from_now(sandbox: Sandbox) -> None:
    sandbox.set_timeout(1000)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(seconds=900) < left <= datetime.timedelta(seconds=1000)
    Sandbox.set_timeout(sandbox.sandbox_id, 2000)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(seconds=1900) < left <= datetime.timedelta(seconds=2000)


def test_a_timeout_of_nothing_ends_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.set_timeout(0)
    while sandbox.is_running():
        pass
    with pytest.raises(NotFoundException):
        sandbox.get_info()


def test_lists_have_pages_filters_and_an_order() -> None:
    mark = uuid.uuid4().hex
    with (
        Sandbox.create(metadata={"mark": mark, "n": "1 & 1"}) as first,
        Sandbox.create(metadata={"mark": mark, "n": "2"}) as second,
        Sandbox.create(metadata={"mark": mark, "n": "3"}) as third,
    ):
        newest_first = [third.sandbox_id, second.sandbox_id, first.sandbox_id]
        assert listed(metadata={"mark": mark}) == newest_first
        assert listed(metadata={"mark": mark, "n": "1 & 1"}) == [first.sandbox_id]
        assert listed(metadata={"mark": mark}, template="base") == newest_first
        assert listed(metadata={"mark": mark}, template="other") == []
        assert listed(metadata={"mark": mark}, state=[SandboxState.RUNNING]) == newest_first
        assert listed(metadata={"mark": mark}, state=[SandboxState.PAUSED]) == []
        after = second.get_info().started_at
        assert listed(metadata={"mark": mark}, started_after=after) == newest_first[:2]
        query = SandboxQuery(metadata={"mark": mark})
        page = Sandbox.list(query=query, limit=2, order="asc")
        assert [each.sandbox_id for each in page.next_items()] == newest_first[:0:-1]
        assert page.has_next


def test_a_paused_sandbox_goes_on_where_it_was(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read x; echo got $x", background=True, stdin=True)
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    info = sandbox.get_info()
    assert info.state == SandboxState.PAUSED
    assert info.end_at - info.started_at > datetime.timedelta(days=29)
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")
    assert sandbox.sandbox_id in listed(state=[SandboxState.PAUSED])
    assert sandbox.sandbox_id not in listed(state=[SandboxState.RUNNING])
    sandbox.connect(timeout=100)
    info = sandbox.get_info()
    assert info.state == SandboxState.RUNNING
    assert info.end_at - datetime.datetime.now(datetime.UTC) < datetime.timedelta(seconds=101)
    handle.send_stdin("it\n")
    assert handle.wait().stdout == "got it\n"
    with pytest.raises(SandboxException, match="keeps its memory"):
        sandbox.pause(mode="filesystem")


def test_a_paused_sandbox_is_killed() -> None:
    sandbox = Sandbox.create()
    sandbox.pause()
    assert sandbox.kill() is True
    with pytest.raises(NotFoundException):
        sandbox.connect()


def test_metrics_are_of_now(sandbox: Sandbox) -> None:
    [metric] = sandbox.get_metrics()
    assert metric.cpu_count == 1
    assert 0 < metric.mem_used < metric.mem_total == 1 << 30
    assert metric.disk_total == DISK_BYTES


def test_a_fork_goes_on_from_where_the_original_is(sandbox: Sandbox) -> None:
    sandbox.files.write("/root/kept", "of the original")
    [fork, other] = sandbox.fork(count=2, timeout=100)
    assert isinstance(fork, Sandbox) and isinstance(other, Sandbox)
    with fork, other:
        assert fork.sandbox_id != other.sandbox_id != sandbox.sandbox_id
        assert fork.files.read("/root/kept") == "of the original"
        fork.files.write("/root/kept", "of the fork")
        assert other.files.read("/root/kept") == "of the original"
        assert sandbox.files.read("/root/kept") == "of the original"


def test_a_snapshot_makes_sandboxes_by_its_id_and_by_its_name(sandbox: Sandbox) -> None:
    name = f"snap-{uuid.uuid4().hex}"
    sandbox.files.write("/root/kept", "of the snapshot")
    snapshot = sandbox.create_snapshot(name)
    assert snapshot.names == [name]
    try:
        for template in (snapshot.snapshot_id, name, f"{name}:default"):
            with Sandbox.create(template) as made:
                assert made.files.read("/root/kept") == "of the snapshot"
                assert made.get_info().template_id == snapshot.snapshot_id
        unnamed = sandbox.create_snapshot()
        listed = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=1)
        assert [each.snapshot_id for each in listed.next_items()] == [unnamed.snapshot_id]
        assert [each.snapshot_id for each in listed.next_items()] == [snapshot.snapshot_id]
        assert not listed.has_next
        [found] = Sandbox.list_snapshots(name=name).next_items()
        assert found.snapshot_id == snapshot.snapshot_id
        assert Sandbox.delete_snapshot(unnamed.snapshot_id) is True
    finally:
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    with pytest.raises(SandboxException, match="no such template"):
        Sandbox.create(name)


@pytest.mark.parametrize("template", ["no-such-image", "NO GOOD/name", "tp-0123456789abcdef"])
def test_a_template_that_does_not_exist_is_named(template: str) -> None:
    with pytest.raises(SandboxException, match="404"):
        Sandbox.create(template)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"network": {"allow_out": ["1.1.1.1"]}}, "network is not supported"),
        ({"allow_internet_access": True}, "allow_internet_access is not supported"),
        (
            {"lifecycle": {"on_timeout": {"action": "pause", "mode": "filesystem"}}},
            "autoPauseMemory is not supported",
        ),
        ({"envs": {"": "x"}}, "envVars"),
        ({"timeout": 1 << 40}, "timeout"),
        ({"metadata": {"k": "v" * 5000}}, "metadata"),
    ],
)
def test_what_cannot_be_had_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(SandboxException, match=f"400: .*{said}"):
        Sandbox.create(**options)  # type: ignore[arg-type]


def test_a_wrong_key_is_refused() -> None:
    for key in ("e2b_" + "0" * 40, "x"):
        with pytest.raises(AuthenticationException):
            Sandbox.create(api_key=key)
        with pytest.raises(AuthenticationException):
            Sandbox.list(api_key=key).next_items()


def test_the_sandbox_of_another_tenant_does_not_exist(sandbox: Sandbox) -> None:
    sandbox_id = sandbox.sandbox_id
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox_id, api_key=OTHER_KEY)
    with pytest.raises(NotFoundException):
        Sandbox.get_info(sandbox_id, api_key=OTHER_KEY)
    assert Sandbox.kill(sandbox_id, api_key=OTHER_KEY) is False
    with pytest.raises(NotFoundException):
        Sandbox.set_timeout(sandbox_id, 1, api_key=OTHER_KEY)
    found = Sandbox.list(api_key=OTHER_KEY).next_items()
    assert sandbox_id not in [each.sandbox_id for each in found]
    assert sandbox.is_running()


def test_a_snapshot_of_another_tenant_does_not_exist(sandbox: Sandbox) -> None:
    name = f"snap-{uuid.uuid4().hex}"
    snapshot = sandbox.create_snapshot(name)
    try:
        for key, template in (
            (OTHER_KEY, snapshot.snapshot_id),
            (OTHER_KEY, name),
            (ROOT_KEY, name),
        ):
            with pytest.raises(SandboxException, match="404"):
                Sandbox.create(template, api_key=key)
        assert Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=OTHER_KEY) is False
    finally:
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True


def test_roots_key_reaches_every_sandbox(sandbox: Sandbox) -> None:
    found = Sandbox.connect(sandbox.sandbox_id, api_key=ROOT_KEY)
    assert found.commands.run("echo in").stdout == "in\n"
