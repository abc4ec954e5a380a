"""A sandbox that can be captured and forked, without the daemon.

Isolation is the real one: the daemon's own setup plan and policy. The upper directory is frozen by
copying it while the tree is stopped, and becomes the topmost lower directory of each fork.
"""

from __future__ import annotations

import itertools
import os
import resource
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxd import _native
from sandboxd import init_protocol as protocol
from sandboxd.init_protocol.numbers import ExecKind
from sandboxd.isolation.plan import IsolationSpec, exec_policy, setup_ops
from tests.support.init_harness import RawSandbox

MEMORY_BYTES = 1 << 30
_NUMBERS = itertools.count()


@dataclass
class Fork:
    """What a restore said about itself."""

    milliseconds: float
    """From the coordinator's birth to its end, which is when the tree runs."""
    exit_code: int | None
    failure: str


def isolated(rootfs: Path, directory: Path, layers: Sequence[Path]) -> RawSandbox:
    directory.mkdir(parents=True)
    spec = IsolationSpec(
        sandbox_id=f"fidelity-{next(_NUMBERS)}",
        hostname="sandbox",
        memory_bytes=MEMORY_BYTES,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )
    return RawSandbox(
        rootfs, directory, ops=setup_ops(spec), policy=exec_policy(spec), layers=tuple(layers)
    )


def restore(sandbox: RawSandbox, template: _native.Template, externals: Sequence[int] = ()) -> Fork:
    """Rebuilds the template's tree in a fresh sandbox."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared = template.create_shared_page()
    try:
        with ours:
            template.send(ours.fileno(), shared, list(externals))
            template.release(shared)
            request = protocol.ExecRequest(
                sandbox.exec_id(),
                ("restore",),
                kind=ExecKind.RESTORE,
                number0=template.coordinator,
            )
            with theirs:
                sandbox.start_request(request, protocol.ExecFds(stdin=theirs.fileno()))
            exited = sandbox.client.wait_exit(request.exec_id)
        return Fork(exited.duration_us / 1000, exited.exit_code, template.failure(shared))
    finally:
        os.close(shared)


def freeze(upper: Path, into: Path) -> Path:
    """A copy of an upper directory, whiteouts and attributes too."""
    subprocess.run(["cp", "-a", "--reflink=auto", upper, into], check=True)
    return into
