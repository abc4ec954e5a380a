"""The floor of a fork: the calls of its restore plan in a sandbox that stands ready, no daemon.

Init, namespaces, overlay, filter and plan are those of a real sandbox, and floor.c keeps the time.
What is missing beside the daemon are the groups, and so what the kernel takes for the accounting.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.driver import compiled
from bench.first_byte import ECHO
from sandboxd import _native
from sandboxd.init_protocol import (
    ExecFds,
    ExecKind,
    ExecRequest,
    encode_exec,
    encode_hello,
    encode_plan,
)
from sandboxd.isolation.plan import IsolationSpec, exec_policy, setup_ops
from sandboxd.launch import INIT_BINARY, OVERLAY_OPTIONS

# Of no tenant of a daemon, whose ranges begin at 2**30.
ID_BASE = 1_500_000_000
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
WAIT_S = 120.0
# One that stands has been at rest: what the kernel does behind its making is done.
REST_S = 0.05
RESTORE, COMMAND = 1, 2  # exec ids that floor.c knows

_numbers = itertools.count(1)


@contextlib.contextmanager
def ready_sandbox(
    place: Path, rootfs: Path, memory_bytes: int
) -> Iterator[tuple[int, socket.socket]]:
    """A sandbox in which nothing has run: the pid of its init, and a connection to it."""
    directory = place / f"ready-{next(_numbers)}"
    with contextlib.ExitStack() as stack:
        for name in ("layer/upper", "layer/work", "root"):
            (directory / name).mkdir(parents=True)
        stack.callback(shutil.rmtree, directory)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(directory / "init"))
        listener.listen(1)
        spec = IsolationSpec("ready", "ready", memory_bytes, "0")
        plan = stack.enter_context(os.fdopen(os.memfd_create("plan"), "wb", buffering=0))
        plan.write(encode_plan(setup_ops(spec), exec_policy(spec)))

        def opened(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> int:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            return descriptor

        spawned = _native.spawn(
            init_fd=opened(INIT_BINARY, os.O_RDONLY),
            plan_fd=plan.fileno(),
            listen_fd=listener.fileno(),
            root_mountpoint=str(directory / "root"),
            lower_fds=[opened(rootfs)],
            upper_parent_fd=opened(directory / "layer"),
            id_base=ID_BASE,
            overlay_options=OVERLAY_OPTIONS,
        )
        stack.callback(os.close, spawned.pidfd)
        stack.callback(os.waitid, os.P_PIDFD, spawned.pidfd, os.WEXITED)
        stack.callback(signal.pidfd_send_signal, spawned.pidfd, signal.SIGKILL)
        control = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        control.settimeout(WAIT_S)
        control.connect(str(directory / "init"))
        control.send(encode_hello(1))
        control.recv(4096)
        yield spawned.pid, control


class PlanFloor:
    """Forks of one program, each in a ready sandbox of its own. `restored_ms` is, of each sample,
    the part until the program ran again."""

    def __init__(self, place: Path, rootfs: Path, argv: Sequence[str], memory_bytes: int) -> None:
        self._place = place
        self._rootfs = rootfs
        self._memory_bytes = memory_bytes
        self.restored_ms: list[float] = []
        self._template = self._capture(argv)
        out = ExecFds(stdout=0)
        packets = {
            "restore": (
                ExecRequest(
                    RESTORE, ("restore",), ExecKind.RESTORE, number0=self._template.coordinator
                ),
                ExecFds(stdin=0),
            ),
            "command": (ExecRequest(COMMAND, ECHO, env=ENVIRONMENT), out),
        }
        self._packets = []
        for name, (request, fds) in packets.items():
            path = place / f"packet-{next(_numbers)}-{name}"
            path.write_bytes(encode_exec(request.exec_id + 1, request, fds))
            self._packets.append(str(path))

    def _capture(self, argv: Sequence[str]) -> _native.Template:
        with ready_sandbox(self._place, self._rootfs, self._memory_bytes) as (init, control):
            ours, theirs = os.pipe()
            with open(ours, "rb") as output:
                request = ExecRequest(1, tuple(argv), env=ENVIRONMENT)
                try:
                    packet = encode_exec(2, request, ExecFds(stdout=theirs, stderr=theirs))
                    socket.send_fds(control, [packet], [theirs, theirs])
                finally:
                    os.close(theirs)
                said = output.readline()
                if said != b"ready\n":
                    raise RuntimeError(f"the program said {said!r}")
                return _native.capture(init, [output.fileno()])

    def sample(self) -> float:
        with (
            ready_sandbox(self._place, self._rootfs, self._memory_bytes) as (_, control),
            contextlib.ExitStack() as stack,
        ):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(ours)
            stack.enter_context(theirs)
            ours.setblocking(False)
            shared = self._template.create_shared_page()
            stack.callback(os.close, shared)
            slots = self._template.counts["external_slots"]
            nowhere = stack.enter_context(open(os.devnull, "r+b", buffering=0))
            self._template.send(ours.fileno(), shared, [nowhere.fileno()] * slots)
            self._template.release(shared)
            restore, command = self._packets
            control.settimeout(None)
            time.sleep(REST_S)
            done = subprocess.run(
                [compiled("floor"), "plan", str(control.fileno()), restore, str(theirs.fileno()),
                 command],
                pass_fds=(control.fileno(), theirs.fileno()),
                stdout=subprocess.PIPE,
                check=False,
                text=True,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(f"the plan failed: {self._template.failure(shared)}")
        taken, restored = (int(part) / 1e6 for part in done.stdout.split())
        self.restored_ms.append(restored)
        return taken
