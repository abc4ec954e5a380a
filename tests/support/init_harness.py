"""One sandbox without the daemon: _native.spawn plus a blocking client of sandbox-init's socket.

The plan here is the smallest that looks like a sandbox; what a real one holds is the business of
sandboxd.isolation and its own tests.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from sandboxd import _native
from sandboxd import init_protocol as protocol

_BIN = Path(__file__).parents[2] / "sandboxd" / "_bin"
INIT = Path(os.environ.get("VENUS_TEST_INIT") or _BIN / "sandbox-init")
ID_BASE = 1_500_000_000
WAIT_S = 20.0
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
# chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot
CAPABILITIES = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18))
# One instruction: allow everything. Its presence is what /proc/self/status shows.
ALLOW_ALL = bytes.fromhex("060000000000ff7f")
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
CGROUP2 = Path("/sys/fs/cgroup/unified")
if not (CGROUP2 / "cgroup.procs").exists():
    CGROUP2 = Path("/sys/fs/cgroup")


_NUMBERS = itertools.count()
NO_FDS = protocol.ExecFds()


def default_ops() -> list[protocol.SetupOp]:
    devices = ("null", "zero", "urandom")
    return [
        protocol.UnshareCgroup(),
        protocol.MountsPrivate(),
        *(protocol.CloneMount(f"/dev/{name}", slot) for slot, name in enumerate(devices)),
        protocol.PivotRoot(),
        protocol.Mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC),
        protocol.Mount("sysfs", "/sys", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC),
        protocol.DetachOldRoot(),
        protocol.Mount("tmpfs", "/dev", MS_NOSUID, "mode=755,size=64k"),
        *(protocol.WriteFile(f"/dev/{name}", mode=0o666) for name in devices),
        *(protocol.AttachMount(slot, f"/dev/{name}") for slot, name in enumerate(devices)),
        protocol.MakeDirectory("/dev/pts"),
        protocol.Mount("devpts", "/dev/pts", MS_NOSUID, "newinstance,ptmxmode=0666"),
        protocol.MakeDirectory("/dev/shm", 0o1777),
        protocol.Mount("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777,size=16m"),
        protocol.Mount("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777,size=16m"),
        protocol.Symlink("/proc/self/fd", "/dev/fd"),
        protocol.MaskPath("/proc/kcore"),
        protocol.MaskPath("/proc/keys"),
        protocol.MaskPath("/sys/firmware"),
        protocol.MaskPath("/proc/acpi"),
        protocol.MaskPath("/proc/no-such-file"),
        protocol.BindReadOnly("/proc/sys"),
        protocol.BindReadOnly("/proc/irq"),
        protocol.SetHostname("inside"),
        protocol.LoopbackUp(),
        protocol.WriteFile("/etc/hosts", b"127.0.0.1 localhost inside\n"),
    ]


def default_policy() -> protocol.ExecPolicy:
    return protocol.ExecPolicy(
        sandbox_id="test-sandbox",
        capability_mask=CAPABILITIES,
        seccomp_filter=ALLOW_ALL,
        oom_score_adj=300,
    )


@dataclass
class Finished:
    """What one run left: outcome, and all of its output."""

    exited: protocol.Exited
    stdout: bytes
    stderr: bytes

    @property
    def code(self) -> int | None:
        return self.exited.exit_code


class StartFailed(Exception):
    def __init__(self, failed: protocol.Failed) -> None:
        super().__init__(f"{failed.step.name}: {os.strerror(failed.errno)}")
        self.step = failed.step
        self.errno = failed.errno


class InitClient:
    """A daemon's side of the control socket, one thing at a time."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, protocol.SEND_BUFFER_SIZE)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))
        self.events: list[protocol.Answer] = []
        self._next_request = 100

    def close(self) -> None:
        self.socket.close()

    def request_id(self) -> int:
        self._next_request += 1
        return self._next_request

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([packet], ancillary)

    def receive(self) -> tuple[protocol.Answer, list[int]]:
        data, ancillary, flags, _ = self.socket.recvmsg(
            protocol.MAX_PACKET_SIZE, socket.CMSG_SPACE(4 * 16), socket.MSG_CMSG_CLOEXEC
        )
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if not data:
            raise ConnectionError("sandbox-init closed the connection")
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload)
        return protocol.decode_packet(data), list(fds)

    def answer(self, request_id: int) -> protocol.Answer:
        """The answer to a request; events that come before it are put aside."""
        while True:
            message, _ = self.receive()
            if getattr(message, "request_id", None) == request_id:
                return message
            self.events.append(message)

    def ask(self, packet: bytes, request_id: int) -> protocol.Answer:
        self.send(packet)
        return self.answer(request_id)

    def hello(self) -> protocol.HelloReply:
        request = self.request_id()
        reply = self.ask(protocol.encode_hello(request), request)
        assert isinstance(reply, protocol.HelloReply)
        return reply

    def kill(self, exec_id: int, number: int = signal.SIGKILL, whole_tree: bool = True) -> int:
        request = self.request_id()
        packet = protocol.encode_kill(request, exec_id, number, whole_tree=whole_tree)
        reply = self.ask(packet, request)
        assert isinstance(reply, protocol.Ack)
        return reply.errno

    def release(self, exec_id: int) -> int:
        request = self.request_id()
        reply = self.ask(protocol.encode_release(request, exec_id), request)
        assert isinstance(reply, protocol.Ack)
        return reply.errno

    def stdin_closed(self, exec_id: int) -> int:
        request = self.request_id()
        reply = self.ask(protocol.encode_stdin_closed(request, exec_id), request)
        assert isinstance(reply, protocol.Ack)
        return reply.errno

    def list(self) -> list[tuple[protocol.ExecInfo, list[int]]]:
        request = self.request_id()
        self.send(protocol.encode_list(request))
        found: list[tuple[protocol.ExecInfo, list[int]]] = []
        while True:
            message, fds = self.receive()
            if isinstance(message, protocol.ListEnd):
                assert message.request_id == request
                return found
            if isinstance(message, protocol.ExecInfo):
                found.append((message, fds))
            else:
                self.events.append(message)

    def start(self, request: protocol.ExecRequest, fds: protocol.ExecFds = NO_FDS) -> int:
        """Starts an exec; returns its pid in the sandbox."""
        number = self.request_id()
        self.send(protocol.encode_exec(number, request, fds), fds.in_order())
        reply = self.answer(number)
        if isinstance(reply, protocol.Failed):
            raise StartFailed(reply)
        assert isinstance(reply, protocol.Started), reply
        assert reply.exec_id == request.exec_id
        return reply.pid

    def wait_exit(self, exec_id: int) -> protocol.Exited:
        while True:
            for event in self.events:
                if isinstance(event, protocol.Exited) and event.exec_id == exec_id:
                    self.events.remove(event)
                    return event
            self.events.append(self.receive()[0])


@dataclass
class ExecCgroup:
    path: Path
    procs_fd: int
    kill_fd: int

    def close(self) -> None:
        os.close(self.procs_fd)
        os.close(self.kill_fd)


@dataclass
class RawSandbox:
    """A spawned sandbox and one client of it. A context manager that leaves nothing behind."""

    rootfs: Path
    directory: Path
    ops: list[protocol.SetupOp] | None = None
    policy: protocol.ExecPolicy = field(default_factory=default_policy)
    use_cgroup: bool = True
    layers: tuple[Path, ...] = ()
    """Directories above `rootfs`, topmost first."""
    layers_by: _native.LayersBy | None = None
    _next_exec: int = 0

    def __enter__(self) -> RawSandbox:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        upper_parent = self.directory / "layer"
        self.root_mountpoint = self.directory / "root"
        self.socket_path = self.directory / "init.sock"
        for path in (upper_parent / "upper", upper_parent / "work", self.root_mountpoint):
            path.mkdir(parents=True)
        stack.callback(shutil.rmtree, upper_parent, ignore_errors=True)
        self.cgroup = CGROUP2 / f"venus-test-{os.getpid()}-{next(_NUMBERS)}"
        if self.use_cgroup:
            (self.cgroup / "init").mkdir(parents=True)
            stack.callback(self._remove_cgroups)

        def opened(path: Path, flags: int) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(self.socket_path))
        listener.listen(4)
        ops = self.ops if self.ops is not None else default_ops()
        plan_fd = os.memfd_create("plan", os.MFD_CLOEXEC)
        stack.callback(os.close, plan_fd)
        os.write(plan_fd, protocol.encode_plan(ops, self.policy))
        procs = (
            [opened(self.cgroup / "init" / "cgroup.procs", os.O_WRONLY)] if self.use_cgroup else []
        )
        spawned = _native.spawn(
            init_fd=opened(INIT, os.O_PATH),
            plan_fd=plan_fd,
            listen_fd=listener.fileno(),
            root_mountpoint=str(self.root_mountpoint),
            lower_fds=[
                opened(path, os.O_PATH | os.O_DIRECTORY) for path in (*self.layers, self.rootfs)
            ],
            upper_parent_fd=opened(upper_parent, os.O_PATH | os.O_DIRECTORY),
            id_base=ID_BASE,
            cgroup_procs_fds=procs,
            layers_by=self.layers_by,
        )
        self.pid, self.pidfd = spawned.pid, spawned.pidfd
        self.timings_us = spawned.timings_us
        stack.callback(os.close, self.pidfd)
        stack.callback(self._kill)
        self.client = self.connect()
        stack.callback(lambda: self.client.close())

    def connect(self) -> InitClient:
        return InitClient(self.socket_path)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)

    def _remove_cgroups(self) -> None:
        """Processes of a dead pid namespace leave their groups a moment after init is reaped."""
        deadline = time.monotonic() + WAIT_S
        for path in [*self.cgroup.iterdir(), self.cgroup]:
            while path.is_dir():
                try:
                    path.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    select.select([], [], [], 0.005)

    @property
    def upper(self) -> Path:
        return self.directory / "layer" / "upper"

    def exec_id(self) -> int:
        self._next_exec += 1
        return self._next_exec

    @contextlib.contextmanager
    def exec_cgroup(self, exec_id: int) -> Iterator[ExecCgroup | None]:
        if not self.use_cgroup:
            yield None
            return
        path = self.cgroup / f"exec-{exec_id}"
        path.mkdir()
        group = ExecCgroup(
            path,
            os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC),
            os.open(path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC),
        )
        try:
            yield group
        finally:
            group.close()

    def start(
        self,
        *argv: str | bytes,
        fds: protocol.ExecFds = NO_FDS,
        env: dict[str, str] | None = None,
        cwd: str = "/",
        user: str = "",
        timeout_ms: int = 0,
    ) -> int:
        """Starts a program in a cgroup of its own; returns the exec id."""
        exec_id = self.exec_id()
        request = protocol.ExecRequest(
            exec_id,
            argv,
            user=user,
            cwd=cwd,
            env=ENV if env is None else env,
            timeout_ms=timeout_ms,
        )
        self.start_request(request, fds)
        return exec_id

    def start_request(self, request: protocol.ExecRequest, fds: protocol.ExecFds) -> int:
        with self.exec_cgroup(request.exec_id) as group:
            if group:
                fds = replace(fds, cgroup_procs=(group.procs_fd,), cgroup_kill=group.kill_fd)
            return self.client.start(request, fds)

    def run_request(self, request: protocol.ExecRequest, stdin: bytes | None = None) -> Finished:
        """Runs to the end of its output, whoever holds it, and of its leader."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        in_read, in_write = os.pipe2(os.O_CLOEXEC) if stdin is not None else (None, -1)
        try:
            fds = protocol.ExecFds(stdin=in_read, stdout=out_write, stderr=err_write)
            try:
                self.start_request(request, fds)
            finally:
                for fd in (out_write, err_write, in_read):
                    if fd is not None:
                        os.close(fd)
            outputs = pump({out_read: b"", err_read: b""}, in_write, stdin or b"")
            in_write = -1
            exited = self.client.wait_exit(request.exec_id)
            assert self.client.release(request.exec_id) == 0
            return Finished(exited, outputs[out_read], outputs[err_read])
        finally:
            for fd in (out_read, err_read, in_write):
                if fd >= 0:
                    os.close(fd)

    def run(
        self,
        *argv: str | bytes,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: str = "/",
        user: str = "",
        timeout_ms: int = 0,
    ) -> Finished:
        request = protocol.ExecRequest(
            self.exec_id(),
            argv,
            user=user,
            cwd=cwd,
            env=ENV if env is None else env,
            timeout_ms=timeout_ms,
        )
        return self.run_request(request, stdin)

    def shell(self, script: str, **options: object) -> Finished:
        return self.run("/bin/sh", "-c", script, **options)  # type: ignore[arg-type]

    def python(self, script: str, **options: object) -> Finished:
        return self.run("python3", "-c", script, **options)  # type: ignore[arg-type]


def pump(outputs: dict[int, bytes], in_write: int, stdin: bytes) -> dict[int, bytes]:
    """Feeds stdin (and closes it) while reading all outputs to their end."""
    collected = {fd: bytearray(data) for fd, data in outputs.items()}
    waiting = set(outputs)
    pending = memoryview(stdin)
    if in_write >= 0:
        os.set_blocking(in_write, False)
    while waiting or in_write >= 0:
        if in_write >= 0 and not pending:
            os.close(in_write)
            in_write = -1
            continue
        readable, writable, _ = select.select(
            waiting, [in_write] if in_write >= 0 else [], [], WAIT_S
        )
        assert readable or writable, "no output and no end within the time limit"
        if writable:
            try:
                pending = pending[os.write(in_write, pending[:65536]) :]
            except BrokenPipeError:
                pending = pending[:0]
        for fd in readable:
            data = os.read(fd, 1 << 20)
            collected[fd] += data
            if not data:
                waiting.remove(fd)
    return {fd: bytes(data) for fd, data in collected.items()}
