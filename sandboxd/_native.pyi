"""Types of the C++ extension module. The implementation is native/bindings."""

from collections.abc import Sequence

class NativeError(Exception):
    """A failed system call or setup step: ``operation`` on ``object`` failed with ``errno``.

    ``op_index`` is the index of the failed operation when sandbox-init reported that one of the
    setup plan failed, otherwise None.
    """

    operation: str
    object: str
    errno: int
    op_index: int | None

class SpawnedSandbox:
    """``pid`` is init's pid in the caller's pid namespace; the caller owns (closes) ``pidfd`` and
    reaps the process with ``waitid(P_PIDFD, …)`` once it is dead."""

    @property
    def pid(self) -> int: ...
    @property
    def pidfd(self) -> int: ...
    @property
    def timings_us(self) -> dict[str, int]:
        """Microseconds since the start of the call: cloned, mapped, mounted, ready."""

def spawn(
    *,
    init_fd: int,
    plan_fd: int,
    listen_fd: int,
    root_mountpoint: str,
    lower_fds: Sequence[int],
    upper_parent_fd: int,
    id_base: int,
    id_count: int = 65536,
    cgroup_procs_fds: Sequence[int] = (),
    overlay_options: Sequence[tuple[str, str]] = (),
    timeout_ms: int = 10_000,
) -> SpawnedSandbox:
    """Make namespaces, root overlay and PID 1 of a sandbox; returns when init says READY.

    Blocking; releases the GIL. All or nothing: on failure the process is killed and reaped before
    NativeError is raised. No descriptor of the caller is closed.

    ``init_fd``: the static sandbox-init, opened O_RDONLY or O_PATH; mode must allow others to
    execute it. ``plan_fd``: memfd from ``init_protocol.encode_plan``. ``listen_fd``: listening
    AF_UNIX SOCK_SEQPACKET socket. ``root_mountpoint``: an empty host directory (may be shared by
    all sandboxes), where the overlay root appears *only in the sandbox's mount namespace*: the
    plan pivots into it. ``lower_fds``: directories of the image layers, topmost first, plain ids
    on disk. ``upper_parent_fd``: directory holding ``upper/`` and ``work/`` (both owned by plain id
    0). ``overlay_options``: further fsconfig strings, e.g. ("volatile", "") as a flag when the
    value is empty.
    """
