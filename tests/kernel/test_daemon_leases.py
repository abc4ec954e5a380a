"""Leases: what is made under one goes with it, also when its owner or the daemon is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from sandboxd.client import AsyncLease, AsyncSandbox, Daemon, Lease, Sandbox, Template
from sandboxd.errors import InvalidRequest, LimitExceeded, NotFound, SandboxGone, error_from_json
from tests.kernel.test_daemon_recovery import eventually, restart
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

OWNER = """
import sys, time
from sandboxd.client import Lease, Sandbox
lease = Lease.create(1.5, socket=sys.argv[1])
sandbox = Sandbox.create(lease=lease, socket=sys.argv[1])
template = sandbox.snapshot(lease=lease)
print(lease.lease_id, sandbox.sandbox_id, template.template_id, flush=True)
time.sleep(1000)
"""


def ids(daemon: DaemonProcess) -> set[str]:
    """Of all sandboxes, templates and leases."""
    with Daemon(daemon.socket) as client:
        leases = {each.id for each in client.list_leases()}
    sandboxes = {each.id for each in Sandbox.list(socket=daemon.socket)}
    return leases | sandboxes | {each.id for each in Template.list(socket=daemon.socket)}


def why_gone(sandbox: Sandbox) -> str:
    with pytest.raises(SandboxGone) as raised:
        sandbox.get_info()
    return raised.value.cause


def test_all_of_a_lease_goes_with_it_and_nothing_else(daemon: DaemonProcess) -> None:
    before = ids(daemon)
    with Sandbox.create(socket=daemon.socket) as other:
        with Lease.create(socket=daemon.socket) as lease:
            sandbox = Sandbox.create(lease=lease, socket=daemon.socket)
            template = sandbox.snapshot(lease=lease)
            [fork] = template.fork(lease=lease.lease_id)
            [free] = sandbox.fork()
            assert sandbox.info.lease == template.info.lease == lease.lease_id
            assert free.info.lease is None
            with Daemon(daemon.socket) as client:
                [info] = [each for each in client.list_leases() if each.id == lease.lease_id]
            assert (info.sandboxes, info.templates, info.ttl_s) == (2, 1, 60)
        assert why_gone(sandbox) == why_gone(fork) == "its lease ended"
        assert not lease.release()
        with free:
            assert free.is_running() and other.is_running()
    assert ids(daemon) == before


def test_an_owner_that_is_killed_leaves_nothing(daemon: DaemonProcess) -> None:
    before = ids(daemon)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, daemon.socket], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        made = set(owner.stdout.readline().split())
        assert len(made) == 3
        # Its renewals go on for longer than its time is.
        with Daemon(daemon.socket) as client:
            [first] = [each.expires_at for each in client.list_leases() if each.id in made]
            eventually(
                lambda: any(
                    each.expires_at > first + 1.5
                    for each in client.list_leases()
                    if each.id in made
                ),
                "it is not renewed",
            )
        assert made <= ids(daemon)
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: ids(daemon) == before, f"{ids(daemon) - before} is left")


def test_a_lease_lives_on_when_the_daemon_is_killed(daemon: DaemonProcess) -> None:
    with Lease.create(metadata={"who": "survivor"}, socket=daemon.socket) as lease:
        with Sandbox.create(lease=lease, socket=daemon.socket) as sandbox:
            template = sandbox.snapshot(lease=lease)
            restart(daemon)
            assert sandbox.is_running()
            assert sandbox.get_info().lease == lease.lease_id
            lease.renew()
            assert lease.lost is None
            assert (lease.info.labels, lease.info.templates) == ({"who": "survivor"}, 1)
    with pytest.raises(NotFound):
        Template.get(template.template_id, socket=daemon.socket)


def test_a_lease_that_ended_while_no_daemon_ran(daemon: DaemonProcess) -> None:
    before = ids(daemon)
    lease = Lease.create(socket=daemon.socket)
    sandbox = Sandbox.create(lease=lease, socket=daemon.socket)
    sandbox.snapshot(lease=lease)
    lease.close()
    # As if the daemon had been killed between the lease's end and the removal.
    daemon.kill()
    (daemon.run_dir / "leases" / f"{lease.lease_id}.json").unlink()
    daemon.start()
    assert ids(daemon) == before
    sandbox.close()


def test_what_cannot_be_had_back_is_no_lease(daemon: DaemonProcess) -> None:
    with Lease.create(socket=daemon.socket) as lease:
        for name in ("ls-0.json", f"{lease.lease_id}.tmp"):
            (daemon.run_dir / "leases" / name).write_text('{"version": 1, "x"')
        restart(daemon)
        lease.renew()
        assert [each.name for each in (daemon.run_dir / "leases").iterdir()] == [
            f"{lease.lease_id}.json"
        ]


@pytest.mark.parametrize(
    "make",
    [
        lambda _, lease: Sandbox.create(lease=lease),
        lambda s, lease: s.fork(lease=lease),
        lambda s, lease: s.snapshot(lease=lease),
    ],
)
def test_nothing_comes_to_be_under_one_that_has_ended(
    daemon: DaemonProcess,
    monkeypatch: pytest.MonkeyPatch,
    sandbox: Sandbox,
    make: Callable[[Sandbox, Lease], object],
) -> None:
    monkeypatch.setenv("VENUS_SOCKET", daemon.socket)
    before = ids(daemon)
    with Lease.create(socket=daemon.socket) as lease:
        pass
    with pytest.raises(NotFound, match="lease"):
        make(sandbox, lease)
    assert ids(daemon) == before


def test_one_that_ends_while_a_sandbox_is_being_made(daemon: DaemonProcess) -> None:
    before = ids(daemon)

    async def scenario() -> None:
        async with await AsyncLease.create(socket=daemon.socket) as lease:
            creates = [
                asyncio.create_task(AsyncSandbox.create(lease=lease, socket=daemon.socket))
                for _ in range(12)
            ]
            await asyncio.wait(creates, return_when=asyncio.FIRST_COMPLETED)
            await lease.release()
            for each in await asyncio.gather(*creates, return_exceptions=True):
                if isinstance(each, AsyncSandbox):
                    assert not await each.is_running()
                    await each.close()
                else:
                    assert isinstance(each, NotFound)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert ids(daemon) == before


def test_bounds(daemon: DaemonProcess) -> None:
    for ttl in (0.5, 86401.0):
        with pytest.raises(InvalidRequest, match="ttl_s"):
            Lease.create(ttl, socket=daemon.socket)
    status, body = request(daemon.socket, "POST", "/v1/templates", {"lease": "ls-" + "0" * 16})
    assert (status, body["error"]["code"]) == (400, "invalid_request")
    made = []
    try:
        while (answer := request(daemon.socket, "POST", "/v1/leases", {}))[0] == 201:
            made.append(answer[1]["id"])
        assert isinstance(error_from_json(answer[1]), LimitExceeded)
        assert "max_leases_per_tenant is 256" in answer[1]["error"]["cause"]
    finally:
        with Daemon(daemon.socket) as client:
            for lease_id in made:
                client.release_lease(lease_id)


def test_a_lease_that_is_lost_says_so(daemon: DaemonProcess) -> None:
    with Lease.create(1.0, socket=daemon.socket) as lease, Daemon(daemon.socket) as client:
        client.release_lease(lease.lease_id)
        eventually(lambda: lease.lost is not None, "it does not notice")
        assert isinstance(lease.lost, NotFound)
