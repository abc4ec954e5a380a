"""Life of sandboxes, images and the daemon's figures, through the synchronous client."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import (
    ConnectionLost,
    Daemon,
    DaemonUnavailable,
    ExitReason,
    Sandbox,
    VenusError,
)
from sandboxd.errors import ImageNotFound, InvalidRequest, NotFound, SandboxGone
from tests.support.daemon import DaemonProcess

MIB = 1 << 20


def test_what_is_asked_for_is_what_holds(daemon: DaemonProcess) -> None:
    with Sandbox.create(
        "base",
        memory_bytes=200 * MIB,
        pids=50,
        cpu_cores=0.5,
        disk_bytes=100 * MIB,
        hostname="box",
        timeout=300,
        metadata={"run": "7"},
        socket=daemon.socket,
    ) as sandbox:
        info = sandbox.get_info()
        assert info.limits.memory_bytes == 200 * MIB
        assert (info.limits.pids, info.limits.cpu_cores) == (50, 0.5)
        assert info.limits.disk_bytes == 100 * MIB
        assert info.metadata == {"run": "7"}
        assert info.end_at is not None
        assert (info.end_at - info.started_at).total_seconds() == pytest.approx(300, abs=5)
        assert sandbox.commands.run("hostname").stdout == "box\n"


def test_list_connect_and_kill(daemon: DaemonProcess) -> None:
    with Sandbox.create(metadata={"who": "one"}, socket=daemon.socket) as one:
        with Sandbox.create(metadata={"who": "two"}, socket=daemon.socket) as two:
            ids = {info.id for info in Sandbox.list(socket=daemon.socket)}
            assert {one.sandbox_id, two.sandbox_id} <= ids
            [found] = Sandbox.list({"who": "two"}, socket=daemon.socket)
            assert found.id == two.sandbox_id
            again = Sandbox.connect(two.sandbox_id, socket=daemon.socket)
            two.files.write("/root/f", "shared")
            assert again.files.read("/root/f") == "shared"
            assert again.is_running()
            assert again.kill()
            assert not again.kill()
            assert not again.is_running()
            again.close()
        assert one.is_running()
    with pytest.raises((NotFound, SandboxGone), match=one.sandbox_id):
        Sandbox.connect(one.sandbox_id, socket=daemon.socket)


def test_killing_a_sandbox_ends_its_commands(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        with sandbox.commands.run("echo up; sleep 300", True) as handle:
            next(iter(handle))
            killer = threading.Thread(target=sandbox.kill)
            killer.start()
            result = handle.wait(check=False)
            killer.join()
    assert result.reason in (ExitReason.KILLED, ExitReason.LOST)


def test_time_to_live(daemon: DaemonProcess) -> None:
    with Sandbox.create(timeout=300, socket=daemon.socket) as sandbox:
        with sandbox.commands.run("echo up; sleep 300", True) as handle:
            next(iter(handle))
            sandbox.set_timeout(0.2)
            result = handle.wait(check=False)
        assert result.reason in (ExitReason.KILLED, ExitReason.LOST)
        assert not sandbox.is_running()


def test_a_time_to_live_can_be_removed(daemon: DaemonProcess) -> None:
    with Sandbox.create(timeout=300, socket=daemon.socket) as sandbox:
        sandbox.set_timeout(None)
        assert sandbox.get_info().expires_at is None


def test_metrics_follow_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.commands.run(["python3", "-c", "x = bytearray(40 << 20)"])
    metrics = sandbox.metrics()
    assert metrics.memory_peak_bytes > 40 * MIB
    assert metrics.cpu_s > 0
    assert metrics.oom_kills == 0


def test_the_daemon_counts_programs_and_not_file_operations(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client:
        before = client.info().counters
        with Sandbox.create(socket=daemon.socket) as sandbox:
            sandbox.commands.run("true")
            sandbox.files.write("/root/f", "x")
            sandbox.commands.run("false", check=False)
        after = client.info().counters
    assert after["sandboxes_created"] - before["sandboxes_created"] == 1
    assert after["sandboxes_destroyed"] - before["sandboxes_destroyed"] == 1
    assert after["execs_started"] - before["execs_started"] == 2


def test_an_image_that_is_not_there(daemon: DaemonProcess) -> None:
    with pytest.raises(ImageNotFound, match="nope"):
        Sandbox.create("nope", socket=daemon.socket)


def test_a_limit_out_of_bounds(daemon: DaemonProcess) -> None:
    with pytest.raises(InvalidRequest):
        Sandbox.create(memory_bytes=1 << 60, socket=daemon.socket)


def small_tar(marker: str) -> bytes:
    """A root filesystem with one file; nothing can be executed in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("etc", "root", "tmp", "proc", "sys", "dev", "run"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        content = tarfile.TarInfo("etc/marker")
        content.size = len(marker)
        tar.addfile(content, io.BytesIO(marker.encode()))
    return buffer.getvalue()


def test_images_from_a_tar_and_from_a_directory(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Daemon(daemon.socket) as client:
        client.import_image_tar("fromtar", small_tar("tar"))
        with tarfile.open(fileobj=io.BytesIO(small_tar("directory"))) as tar:
            tar.extractall(tmp_path / "rootfs", filter="fully_trusted")
        client.import_image_directory("fromdir", tmp_path / "rootfs")
        # At once: a listing that lags behind would send a caller to import again.
        assert {"base", "fromtar", "fromdir"} <= {each.name for each in client.list_images()}
        for image, marker in (("fromtar", "tar"), ("fromdir", "directory")):
            with Sandbox.create(image, socket=daemon.socket) as sandbox:
                assert sandbox.files.read("/etc/marker") == marker
                with pytest.raises(VenusError, match="in use"):
                    client.remove_image(image)
            client.remove_image(image)
        assert {"fromtar", "fromdir"}.isdisjoint(each.name for each in client.list_images())


@pytest.mark.parametrize("length", [0, 100, 3000, 3584, 4096])
def test_a_cut_tar_never_becomes_an_image(daemon: DaemonProcess, length: int) -> None:
    with Daemon(daemon.socket) as client:
        with pytest.raises(InvalidRequest):
            client.import_image_tar("broken", small_tar("x")[:length])
        assert "broken" not in {each.name for each in client.list_images()}


def test_a_cut_upload_never_becomes_an_image(daemon: DaemonProcess) -> None:
    def source() -> Iterator[bytes]:
        yield small_tar("x")
        raise RuntimeError("cut")

    # What has arrived is a whole tar; only the body's end is missing.
    with Daemon(daemon.socket) as client:
        with pytest.raises(RuntimeError, match="cut"):
            client.import_image_tar("broken", source())
        assert "broken" not in {each.name for each in client.list_images()}


def test_an_unreachable_daemon_is_named_with_the_reason(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.sock")
    with pytest.raises(DaemonUnavailable, match=r"absent\.sock.*does not exist"):
        Sandbox.create(socket=absent)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DaemonUnavailable, match="not a socket"):
        Sandbox.list(socket=file)
    dead = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(dead)
    with pytest.raises(DaemonUnavailable, match="nobody listens"):
        Sandbox.list(socket=dead)


def test_a_daemon_that_dies_while_it_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer_half() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            connection.close()

        peer = threading.Thread(target=answer_half)
        peer.start()
        with pytest.raises(ConnectionLost, match=f"list sandboxes daemon: .*{path}"):
            Sandbox.list(socket=path)
        peer.join()


def test_a_sandbox_object_shows_what_it_is(sandbox: Sandbox) -> None:
    assert sandbox.sandbox_id in repr(sandbox)
    assert abs(sandbox.info.created_at - time.time()) < 60
