"""Sandboxes made by the real launcher, without the daemon, and a way to run commands in them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sandboxd import init_protocol as protocol
from sandboxd.config import Config
from sandboxd.launch import LaunchedSandbox, Launcher, LaunchRequest, Limits
from sandboxd.pipes import command_pipe
from sandboxd.storage import Collection
from tests.support.init_harness import ENV, Finished, InitClient, pump

MIB = 1 << 20
IMAGE = "base"
PROBE_SOURCE = Path(__file__).parent / "probe" / "probe.c"
DEFAULT_LIMITS = Limits(memory_bytes=256 * MIB, pids=64, cpu_cores=2.0, disk_bytes=256 * MIB)
NO_STREAMS = protocol.ExecFds()
_serial = itertools.count(1)


class Box:
    """One running sandbox and a client of its init."""

    def __init__(self, launcher: Launcher, launched: LaunchedSandbox) -> None:
        self.launcher = launcher
        self.launched = launched
        self.sandbox_id = launched.sandbox_id
        self.client = InitClient(launched.control_path)
        self._next_exec = itertools.count(1)

    def start(
        self,
        *argv: str,
        fds: protocol.ExecFds = NO_STREAMS,
        user: str = "",
        cwd: str = "/",
    ) -> int:
        """Start a command in a group of its own; returns the exec's id."""
        exec_id = next(self._next_exec)
        request = protocol.ExecRequest(exec_id, argv, user=user, cwd=cwd, env=ENV)
        group = self.launched.open_exec_cgroup(exec_id)
        try:
            self.client.start(
                request,
                replace(fds, cgroup_procs=tuple(group.procs_fds), cgroup_kill=group.kill_fd),
            )
        finally:
            group.close()
        return exec_id

    def run(self, *argv: str, stdin: bytes = b"", user: str = "", cwd: str = "/") -> Finished:
        """Run a command to the end of its output."""
        out_read, out_write = command_pipe()
        err_read, err_write = command_pipe()
        in_read, in_write = command_pipe()
        fds = protocol.ExecFds(stdin=in_read, stdout=out_write, stderr=err_write)
        try:
            exec_id = self.start(*argv, fds=fds, user=user, cwd=cwd)
        except BaseException:
            os.close(in_write)
            raise
        finally:
            for descriptor in (in_read, out_write, err_write):
                os.close(descriptor)
        try:
            outputs = pump({out_read: b"", err_read: b""}, in_write, stdin)
        finally:
            os.close(out_read)
            os.close(err_read)
        exited = self.client.wait_exit(exec_id)
        self.client.release(exec_id)
        self.launched.remove_exec_cgroup(exec_id)
        return Finished(exited, outputs[out_read], outputs[err_read])

    def shell(self, script: str, *, user: str = "") -> Finished:
        return self.run("/bin/sh", "-c", script, user=user)

    def output(self, script: str, *, user: str = "") -> str:
        """What the script prints; it must succeed."""
        done = self.shell(script, user=user)
        assert done.code == 0, (script, done.code, done.stderr)
        return done.stdout.decode().strip()

    def install_probe(self, binary: Path) -> None:
        done = self.run(
            "/bin/sh", "-c", "cat > /usr/bin/probe && chmod 755 /usr/bin/probe",
            stdin=binary.read_bytes(),
        )  # fmt: skip
        assert done.code == 0, done.stderr

    def probe(self, *arguments: object, user: str = "") -> str:
        done = self.run("/usr/bin/probe", *map(str, arguments), user=user)
        return done.stdout.decode().strip()

    def host_upper(self) -> Path:
        """Where the sandbox's writes are on the host's disk."""
        volumes = self.launcher._volumes
        return volumes.path(Collection.UPPERS, self.sandbox_id) / "upper"

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def running_launcher(state_dir: Path, name: str) -> Iterator[Launcher]:
    """A prepared launcher with directories and groups of its own; nothing of it is left."""
    config = Config(
        state_dir=state_dir,
        run_dir=Path("/run") / name,  # paths of sockets must be short
        cgroup_parent=name,
        storage_size_bytes=4 << 30,
    )
    launcher = Launcher(config)
    launcher.prepare()
    try:
        yield launcher
    finally:
        for sandbox_id in launcher.remnants():
            launcher.destroy(sandbox_id)
        launcher.close()
        shutil.rmtree(config.run_dir)


def request(limits: Limits = DEFAULT_LIMITS, *, tenant_uid: int = 0) -> LaunchRequest:
    sandbox_id = f"t{os.getpid()}-{next(_serial)}"
    return LaunchRequest(sandbox_id, IMAGE, tenant_uid, limits, hostname=sandbox_id)


@contextlib.contextmanager
def running_box(
    launcher: Launcher, limits: Limits = DEFAULT_LIMITS, *, tenant_uid: int = 0
) -> Iterator[Box]:
    wanted = request(limits, tenant_uid=tenant_uid)
    box = Box(launcher, launcher.launch(wanted))
    try:
        yield box
    finally:
        box.close()
        launcher.destroy(wanted.sandbox_id)


def build_probe(directory: Path) -> Path:
    binary = directory / "probe"
    compiler = shutil.which("musl-gcc") or "cc"
    subprocess.run(
        [compiler, "-static", "-Os", "-Wall", "-Wextra", "-Werror", PROBE_SOURCE, "-o", binary],
        check=True,
    )
    return binary
