"""Types of the C++ extension module. The implementation is native/bindings."""

from collections.abc import Callable, Sequence
from typing import Literal

class NativeError(Exception):
    """A failed system call or setup step: ``operation`` on ``object`` failed with ``errno``.

    ``op_index`` is the index of the failed operation when sandbox-init reported that one of the
    setup plan failed, otherwise None.
    """

    operation: str
    object: str
    errno: int
    op_index: int | None

class LayersBy:
    """How the layers of an overlay are given to the kernel."""

    DESCRIPTOR: LayersBy
    PATH: LayersBy

def layers_by() -> LayersBy:
    """What this kernel takes, asked once in a process: descriptors from Linux 6.15 on. Raises
    NativeError where it has no overlays or the caller may make none."""

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
    layers_by: LayersBy | None = None,
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
    value is empty. ``layers_by``: None stands for what ``layers_by()`` says.
    """

class Refused(Exception):
    """State that a snapshot cannot hold: ``object`` of ``process``, for ``reason``."""

    process: str
    object: str
    reason: str

class Template:
    """A captured process tree: sealed extents and a sealed plan. Forked any number of times."""

    @property
    def coordinator(self) -> int:
        """Pid that the stub must have which starts the plan: ``number0`` of the RESTORE exec."""
    @property
    def counts(self) -> dict[str, int]:
        """processes, threads, mappings, pieces, objects, operations, extents, extent_bytes,
        inherited_bytes, copied_bytes (which each fork has of its own from the start), plan_bytes,
        external_slots."""
    @property
    def children_of_init(self) -> list[int]:
        """Pids, inside the sandbox, of the processes whose end init learns of."""
    @property
    def times_ms(self) -> dict[str, float]: ...
    def save(self, digests: bool = False) -> bytes:
        """The header: with ``descriptors``, all that ``load_template`` needs in another process.

        It is valid on this boot of the machine. ``digests`` records the SHA-256 of every extent as
        well, which reads all of them; that of the plan is always there.
        """
    def descriptors(self) -> list[int]:
        """The sealed files that the header speaks of, in its order: extents, then the plan.

        Borrowed: they are closed with the template, so duplicate or send them while it is there.
        """
    def create_shared_page(self) -> int:
        """A file for one fork, where a failed operation is recorded; the caller closes it."""
    def send(self, socket: int, shared_page: int, externals: Sequence[int] = ()) -> None:
        """Send plan and descriptors over the peer of the socket that is the stdin of the exec."""
    @staticmethod
    def release(shared_page: int) -> bool:
        """Let the tree of one fork run, once it is built: until then its program does not. True if
        it was built, and nothing that could fail is left."""
    def collapse(self) -> None:
        """Make huge pages of its memory, which takes seconds per GiB; forks may run meanwhile. An
        optimisation: that some stay small is no error."""
    def failure(self, shared_page: int) -> str:
        """Which operation of the fork failed, on what and why; empty when none did."""

def load_template(
    header: bytes, descriptors: Sequence[int], verify_digests: bool = False
) -> Template:
    """A template from what ``save`` and ``descriptors`` gave, in this or another process.

    The descriptors are duplicated; the caller closes its own. Raises ``NativeError`` unless all is
    as it was saved: version and every field of the header, number of descriptors, seals, sizes and
    identities of the files, and the content of the plan; with ``verify_digests`` (reads everything;
    needs a header saved with ``digests``) that of the extents too.
    """

class WriteTracking:
    """What captures of one sandbox know of its pages, so that the next copies only what was written
    since. Dropping it costs nothing but that. At most one at a time for a sandbox."""

    def __init__(self) -> None: ...

def capture(
    init_pid: int,
    externals: Sequence[int] = (),
    while_stopped: Callable[[], object] | None = None,
    parent: Template | None = None,
    leave_out: str = "",
    on_external: Literal["refuse", "reset"] = "refuse",
    tracking: WriteTracking | None = None,
) -> Template:
    """Capture the process tree of a live sandbox, which goes on afterwards.

    ``externals``: descriptors of the caller that lead to files which belong to it (its ends of
    pipes, masters of ptys); each gets a slot, in this order, that a fork fills with a new one. For
    a pty that is a connected Unix socket, over whose other end the caller gets the new master
    (``SCM_RIGHTS``, with one byte). ``while_stopped`` is
    called while nothing in the sandbox runs: to freeze its files. ``parent``: the template that the
    sandbox was forked from, whose pages are then referenced instead of copied. ``leave_out`` is for
    tests of tests: system calls of the plan whose object contains it are left out. ``on_external``:
    connections to outside the sandbox are refused, or come back reset.

    ``tracking``: keep it from one capture of a sandbox to the next. Its pages stay write-protected
    between them (the first write of each costs a fault of about a microsecond).

    Raises ``Refused`` for state that cannot be rebuilt and ``NativeError`` for failed system calls.
    """

class TracerGone(NativeError):
    """The tracer ended, or closed the connection."""

class Tracer:
    """A connection to the process that captures one sandbox (native/tracer/server.h), which
    outlives this one."""

    def __init__(self, socket: int) -> None:
        """Takes the connected socket and waits for the greeting; ``NativeError`` (EPROTONOSUPPORT)
        when the tracer is of another version."""
    @property
    def pid(self) -> int: ...
    @property
    def kept(self) -> dict[tuple[int, int], int]:
        """What it kept for the next capture when it was connected: device and inode of a file → the
        memory that it takes, in bytes."""
    @property
    def gone(self) -> bool: ...
    def capture(
        self,
        externals: Sequence[int],
        while_stopped: Callable[[], object] | None,
        parent: Template | None,
        *,
        keep: bool,
        on_external: Literal["refuse", "reset"] = "refuse",
    ) -> Template:
        """See ``capture``. ``keep``: write tracking, from one capture to the next.

        ``TracerGone``: whether it was killed in the middle its mark says. Whatever else is raised,
        the sandbox goes on.
        """
    def end(self) -> None:
        """It ends, and keeps nothing."""
    def wait_until_gone(self, timeout_ms: int) -> None:
        """For so long at most."""

def end_tracer(socket: int) -> None:
    """Let a tracer of whatever version end."""
