"""What is taken from a service manager, and what it is told; real sockets, no service manager."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.errors import InvalidRequest
from sandboxd.systemd import manager
from sandboxd.systemd.install import UNITS, install

PID = 1234


@pytest.fixture
def hearer(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.bind(str(tmp_path / "notify"))
        hearing.settimeout(30)
        yield hearing


@pytest.fixture
def first_listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket whose descriptor stands for the one that a service manager hands over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        handed = os.dup(listener.fileno())
        os.set_inheritable(handed, True)
        monkeypatch.setattr(manager, "FIRST_LISTENER", handed)
        yield listener


def test_without_one_nothing_is_handed_over_and_telling_does_nothing() -> None:
    environment = {"PATH": "/bin"}
    handed = manager.hand_over(environment, PID)
    assert (handed.notify_address, handed.watchdog_s, handed.listener) == ("", None, None)
    assert environment == {"PATH": "/bin"}
    handed.tell("READY=1")
    asyncio.run(handed.keep_alive(lambda: "never asked"))


def test_what_is_handed_over_goes_from_the_environment() -> None:
    environment = {
        "PATH": "/bin",
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(PID),
        "LISTEN_FDNAMES": "sandboxd",
    }
    handed = manager.hand_over(environment, PID)
    assert (handed.notify_address, handed.watchdog_s) == ("/run/systemd/notify", 30.0)
    assert environment == {"PATH": "/bin"}


def test_what_is_meant_for_another_process_is_not_taken() -> None:
    environment = {
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": str(PID + 1),
        "LISTEN_FDS": "1",
        "LISTEN_PID": str(PID + 1),
    }
    handed = manager.hand_over(environment, PID)
    assert (handed.watchdog_s, handed.listener) == (None, None)


def test_lines_arrive_in_one_datagram(hearer: socket.socket) -> None:
    handed = manager.hand_over({"NOTIFY_SOCKET": hearer.getsockname()}, PID)
    handed.tell("READY=1", "STATUS=none")
    assert hearer.recv(100) == b"READY=1\nSTATUS=none"
    handed.tell_reloading()
    assert hearer.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


def test_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearer:
        hearer.bind(f"\0venus-test-{os.getpid()}")
        manager.hand_over({"NOTIFY_SOCKET": f"@venus-test-{os.getpid()}"}, PID).tell("READY=1")
        assert hearer.recv(100) == b"READY=1"


def test_nobody_hears(tmp_path: Path) -> None:
    manager.ServiceManager(str(tmp_path / "nobody")).tell("READY=1")


def test_the_watchdog_is_told_again_and_again(hearer: socket.socket) -> None:
    handed = manager.ServiceManager(hearer.getsockname(), watchdog_s=0.003)
    counts = iter(range(10**9))

    async def told(number: int) -> list[bytes]:
        keeping = asyncio.ensure_future(handed.keep_alive(lambda: f"turn {next(counts)}"))
        try:
            return [await asyncio.to_thread(hearer.recv, 100) for _ in range(number)]
        finally:
            keeping.cancel()

    assert asyncio.run(told(3)) == [b"WATCHDOG=1\nSTATUS=turn %d" % turn for turn in range(3)]


def test_a_listener_is_taken(first_listener: socket.socket, tmp_path: Path) -> None:
    first_listener.bind(str(tmp_path / "socket"))
    first_listener.listen(1)
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(PID)}
    taken = manager.hand_over(environment, PID).listener
    assert taken is not None
    with taken:
        assert taken.getsockname() == first_listener.getsockname()
        assert not taken.get_inheritable()
        assert not taken.getblocking()


@pytest.mark.parametrize("count", [1, 2])
def test_what_cannot_be_the_daemons_socket_is_refused(
    first_listener: socket.socket, tmp_path: Path, count: int
) -> None:
    first_listener.bind(str(tmp_path / "socket"))
    if count == 2:
        first_listener.listen(1)
    with pytest.raises(InvalidRequest, match="one listening Unix stream socket"):
        manager.hand_over({"LISTEN_FDS": str(count), "LISTEN_PID": str(PID)}, PID)


def test_units_are_installed_with_the_command_that_starts_this_daemon(tmp_path: Path) -> None:
    written = install(tmp_path, Path("/opt/v/bin/python"), Path("/opt/v/lib"))
    assert {path.name for path in written} == {path.name for path in UNITS.iterdir()}
    service = (tmp_path / "etc/systemd/system/venus-sandboxd.service").read_text()
    assert "\nExecStart=/opt/v/bin/python -m sandboxd --" in service
    assert "\nEnvironment=PYTHONPATH=/opt/v/lib\n" in service
    assert "g venus -" in (tmp_path / "etc/sysusers.d/venus.conf").read_text()
    assert not any("@" in path.read_text() for path in written)
