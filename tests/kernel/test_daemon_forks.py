"""Forks and templates of a real daemon: bounds, tenants, restarts, and nothing left."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import LimitExceeded, SnapshotRefused, VenusError
from tests.kernel.test_daemon_recovery import eventually, processes_of_sandboxes
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import footprint, layers_of, records_of, settled_footprint
from tests.support.outside import CLIENT, join, server_outside
from tests.support.raw_http import as_user, request

GROUP, ALICE, BOB = 54321, 54001, 54002
MAX_EXECS = 6
F_OFD_SETLK = 37
ECHO = "while read line; do echo heard $line; done"
COUNTER = """
import time
number = 0
while True:
    number += 1
    open("/tmp/number.new", "w").write(str(number))
    __import__("os").rename("/tmp/number.new", "/tmp/number")
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def small(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon with narrow bounds, plain storage, and a socket that is open to a group."""
    process = DaemonProcess(
        f"venus-f{os.getpid()}",
        tmp_path_factory.mktemp("venus"),
        {
            "socket_group": str(GROUP),
            "storage_backend": "plain",
            "max_execs": str(MAX_EXECS),
            "max_templates_per_tenant": "2",
        },
    )
    with serving(process, base_image_tar):
        yield process


def start_counter(sandbox: Sandbox) -> None:
    sandbox.commands.run(f"python3 -c '{COUNTER}' > /dev/null 2>&1 < /dev/null &")
    eventually(lambda: number_of(sandbox) > 0, "the counter does not start")


def number_of(sandbox: Sandbox) -> int:
    return int(sandbox.commands.run("cat /tmp/number", check=False).stdout or 0)


def test_a_copied_layer_keeps_what_an_overlay_needs(small: DaemonProcess) -> None:
    with Sandbox.create(socket=small.socket) as sandbox:
        sandbox.commands.run(
            "rm /etc/debian_version; rm -r /srv; mkdir -p /srv/new; mv /opt /opt2;"
            "echo one > /root/a; ln /root/a /root/b; ln -s /etc/passwd /root/link;"
            "truncate -s 10G /root/sparse; echo end >> /root/sparse;"
            "mkfifo /root/fifo; chown 1000:1001 /root/a; chmod 4711 /root/b"
        )
        [fork] = sandbox.fork()
        with fork:
            seen = fork.commands.run(
                "ls -d /etc/debian_version /opt 2>&1 | grep -c 'No such'; ls /srv; ls -d /opt2;"
                "stat -c '%h %u %g %a' /root/a /root/b; readlink /root/link;"
                "stat -c '%s %F' /root/sparse; stat -c %F /root/fifo; tail -c 4 /root/sparse"
            ).stdout.splitlines()
            assert seen == [
                "2", "new", "/opt2", "2 1000 1001 4711", "2 1000 1001 4711", "/etc/passwd",
                f"{(10 << 30) + 4} regular file", "fifo", "end",
            ]  # fmt: skip
            [layer] = layers_of(small)
            upper = small.state_dir / "storage" / "layers" / layer / "upper"
            assert (upper / "root/sparse").stat().st_blocks < 1024
            fork.commands.run("echo two > /root/a")
        assert sandbox.commands.run("cat /root/a").stdout == "one\n"


def test_the_third_of_a_row_fails_and_so_do_all(small: DaemonProcess) -> None:
    with Sandbox.create(socket=small.socket) as sandbox:
        handles = [sandbox.commands.run(["sleep", "1000"], True) for _ in range(2)]
        sandbox.snapshot().remove()  # its tracer stays, as does the connection
        before = settled_footprint(small)
        # Two commands run; each fork has two; the daemon may have six.
        with pytest.raises(LimitExceeded, match=f"max_execs is {MAX_EXECS}"):
            sandbox.fork(4)
        eventually(lambda: footprint(small) == before, f"left: {footprint(small)}, not {before}")
        assert layers_of(small) == []
        forks = sandbox.fork(2)
        for fork in forks:
            assert len(fork.commands.list()) == 2
            fork.kill()
        for handle in handles:
            handle.disconnect()


def test_templates_are_bounded_and_hold_their_image(small: DaemonProcess) -> None:
    with Sandbox.create(socket=small.socket) as sandbox:
        templates = [sandbox.snapshot() for _ in range(2)]
        with pytest.raises(LimitExceeded, match="max_templates_per_tenant is 2"):
            sandbox.snapshot()
    with Daemon(small.socket) as client, pytest.raises(VenusError, match="in use"):
        client.remove_image("base")
    for template in templates:
        template.remove()
    assert layers_of(small) == [] and records_of(small) == []


def test_captures_that_wait_keep_nobody_from_creates(small: DaemonProcess) -> None:
    """There are more of them than the daemon has threads, and each waits for seconds for a lock
    that the init of a fork has and somebody holds."""
    captures = 12

    def held_gate(init_pid: int) -> int:
        for path in Path(f"/proc/{init_pid}/fd").iterdir():
            if "venus-gate" in os.readlink(path):
                gate = os.open(path, os.O_RDWR)
                fcntl.fcntl(gate, F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 1, 0))
                return gate
        raise AssertionError("init has no gate")

    with Sandbox.create(socket=small.socket) as sandbox, contextlib.ExitStack() as stack:
        start_counter(sandbox)
        forks = [stack.enter_context(each) for each in sandbox.fork(captures)]
        for each in forks:
            stack.callback(os.close, held_gate(each.get_info().init_pid or 0))
        with ThreadPoolExecutor(captures) as pool:
            begun = [pool.submit(each.fork) for each in forks]
            with Sandbox.create(socket=small.socket) as other:
                assert other.commands.run("echo lives").stdout == "lives\n"
            assert not any(each.done() for each in begun)
            for each in begun:
                with pytest.raises(VenusError, match="EAGAIN"):
                    each.result()


def test_tenants_do_not_see_each_others_templates(small: DaemonProcess) -> None:
    def ask(uid: int, *arguments: object) -> tuple[int, dict[str, object]]:
        answer: tuple[int, dict[str, object]] = as_user(
            uid,
            uid,
            [GROUP],
            lambda: request(small.socket, *arguments),  # type: ignore[arg-type]
        )
        return answer

    _, sandbox = ask(ALICE, "POST", "/v1/sandboxes", {})
    status, template = ask(ALICE, "POST", f"/v1/sandboxes/{sandbox['id']}/snapshot", {})
    assert status == 201
    place = f"/v1/templates/{template['id']}"
    for method, target, body in (
        ("POST", f"/v1/sandboxes/{sandbox['id']}/snapshot", {}),
        ("POST", f"/v1/sandboxes/{sandbox['id']}/fork", {}),
        ("POST", "/v1/sandboxes", {"template": template["id"]}),
        ("POST", f"{place}/fork", {}),
        ("GET", place, None),
        ("DELETE", place, None),
    ):
        assert ask(BOB, method, target, body)[0] == 404
    assert ask(BOB, "GET", "/v1/templates")[1] == {"templates": []}
    # What root forks stays its tenant's.
    status, made = request(small.socket, "POST", f"{place}/fork", {"count": 2})
    assert status == 201
    assert [each["tenant_uid"] for each in made["sandboxes"]] == [ALICE, ALICE]
    for each in (*made["sandboxes"], sandbox):
        assert ask(ALICE, "DELETE", f"/v1/sandboxes/{each['id']}")[0] == 204
    assert ask(ALICE, "DELETE", place)[0] == 204


@pytest.mark.timeout(600)
def test_many_forks_leave_nothing(daemon: DaemonProcess) -> None:
    def churn(sandbox: Sandbox, count: int) -> None:
        while count > 0:
            forks = sandbox.fork(min(5, count))
            for fork in forks:
                assert number_of(fork) > 0
            for fork in forks:
                fork.kill()
            count -= len(forks)

    with Sandbox.create(socket=daemon.socket) as sandbox:
        start_counter(sandbox)
        churn(sandbox, 10)
        gc.collect()
        before = {**footprint(daemon), "layers": layers_of(daemon)}
        rss_before = psutil.Process(daemon.pid).memory_info().rss
        churn(sandbox, 100)
        eventually(
            lambda: {**footprint(daemon), "layers": layers_of(daemon)} == before,
            "they leave something",
        )
        assert psutil.Process(daemon.pid).memory_info().rss - rss_before < 24 << 20
        first = number_of(sandbox)
        eventually(lambda: number_of(sandbox) > first, "the original stands still")


def test_connections_to_outside_are_refused_or_reset(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox, server_outside() as server:
        join(sandbox.get_info().init_pid or 0, server)
        sandbox.commands.start(["python3", "-c", CLIENT])
        eventually(lambda: sandbox.files.exists("/var/tmp/ready"), "it does not connect")
        for refused in (sandbox.snapshot, sandbox.fork):
            with pytest.raises(SnapshotRefused, match="its other end is outside the sandbox"):
                refused()
        template = sandbox.snapshot(on_external="reset")
        for fork in (*sandbox.fork(on_external="reset"), *template.fork()):
            with fork:
                fork.files.write("/var/tmp/go", "")
                eventually(lambda f=fork: f.files.exists("/var/tmp/result"), "it waits")  # type: ignore[misc]
                assert fork.files.read("/var/tmp/result") == "ConnectionResetError"
        template.remove()
        sandbox.files.write("/var/tmp/go", "")
        eventually(lambda: sandbox.files.exists("/var/tmp/result"), "the original waits")
        assert sandbox.files.read("/var/tmp/result") == "HELLO"


def test_live_forks_survive_a_restart(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.files.write("/root/on-disk", "as it was")
        handle = sandbox.commands.run(["sh", "-c", ECHO], True, stdin=True)
        start_counter(sandbox)
        kept = sandbox.snapshot()
        forks = sandbox.fork(3)
        try:
            infos = [fork.get_info() for fork in forks]
            assert len(layers_of(daemon)) == 2
            daemon.kill()
            daemon.start()
            # Their layer stays, and so does the template with its own.
            assert len(layers_of(daemon)) == 2
            assert Template.get(kept.template_id, socket=daemon.socket).remove()
            assert len(layers_of(daemon)) == 1 and records_of(daemon) == []
            for fork, info in zip(forks, infos, strict=True):
                assert fork.get_info() == info
                assert fork.files.read("/root/on-disk") == "as it was"
                first = number_of(fork)
                eventually(lambda f=fork, n=first: number_of(f) > n, "it stands still")  # type: ignore[misc]
                [command] = [each for each in fork.commands.list() if each.inherited]
                assert command.exec_id == handle.exec_id and command.running
                fork.commands.send_stdin(command.exec_id, b"you\n")
                eventually(
                    lambda f=fork, c=command: f.commands.output(c.exec_id) == b"heard you\n",  # type: ignore[misc]
                    "it does not hear",
                )
            # An adopted fork can be forked, too.
            [again] = forks[0].fork()
            with again:
                assert number_of(again) > 0
        finally:
            for fork in forks:
                fork.kill()
    assert layers_of(daemon) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2, 0.4])
def test_killed_amid_forks(daemon: DaemonProcess, delay_s: float) -> None:
    sandbox = Sandbox.create(socket=daemon.socket)
    start_counter(sandbox)
    sandbox.commands.run("head -c 20M /dev/urandom > /root/much")
    started = threading.Event()
    told: set[str] = set()
    told_templates: set[str] = set()

    def churn() -> None:
        with contextlib.suppress(VenusError, ValueError):
            other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
            for _ in range(50):
                started.set()
                told.update(fork.sandbox_id for fork in other.fork(3))
                told_templates.add(other.snapshot().template_id)

    thread = threading.Thread(target=churn)
    thread.start()
    started.wait(10)
    time.sleep(delay_s)
    daemon.kill()
    thread.join(30)
    daemon.start()
    listed = {each.id for each in Sandbox.list(socket=daemon.socket)}
    # Whoever was told of a fork finds it. The original goes on, also if it was just being captured.
    assert told <= listed
    first = number_of(sandbox)
    eventually(lambda: number_of(sandbox) > first, "the original stands still")
    templates = Template.list(socket=daemon.socket)
    assert told_templates <= {each.id for each in templates}
    assert {f"{each.id}.json" for each in templates} == set(records_of(daemon))
    for info in templates:
        template = Template.get(info.id, socket=daemon.socket)
        [fork] = template.fork()
        with fork:
            assert number_of(fork) > 0
        template.remove()
    for sandbox_id in listed:
        each = Sandbox.connect(sandbox_id, socket=daemon.socket)
        assert number_of(each) > 0
        each.kill()
    assert layers_of(daemon) == []
    assert not any((daemon.run_dir / "sandboxes").iterdir())
    assert processes_of_sandboxes(daemon) == []
