"""Makes and removes sandboxes: storage, images, groups, the setup plan and the native spawn.

The composition of what knows nothing of each other. A sandbox is seven things (`_steps`), made in
order and undone in reverse. No subprocess is started on the way.

Locks: `_lock` is a leaf and guards the dictionaries only. The caller does not work on one id from
two threads at once; different ids are independent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandboxd import _native
from sandboxd.cgroups import CgroupLimits, mounted_backend
from sandboxd.config import Config
from sandboxd.errors import Conflict, InternalError, errno_text
from sandboxd.id_ranges import IdRanges
from sandboxd.images import ImageBounds, ImageSources, ImageStore, PullBounds, Puller
from sandboxd.init_protocol import encode_plan
from sandboxd.isolation.plan import IsolationSpec, exec_policy, setup_ops
from sandboxd.isolation.seccomp import compile_filter
from sandboxd.launch_errors import kernel_errors, not_adoptable, spawn_error
from sandboxd.launch_request import LaunchRequest, Limits, check_request, check_sandbox_id
from sandboxd.launch_steps import Step, do_all, undo_all
from sandboxd.launched import LaunchedSandbox, Usage
from sandboxd.state_files import write_file
from sandboxd.storage import Collection, choose_store
from sandboxd.storage.layers import LayerStore
from sandboxd.storage.tree_removal import remove_tree

__all__ = ["LaunchRequest", "LaunchedSandbox", "Launcher", "Limits", "Usage"]

INIT_BINARY = Path(__file__).parent / "_bin" / "sandbox-init"
CONTROL_SOCKET = "init.sock"
LAUNCH_FILE = "launch.json"
# Renaming a directory of the image works as on any filesystem; and what a crash of the node would
# take is gone anyway, so a sandbox's fsync need not wait for the disk.
OVERLAY_OPTIONS: tuple[tuple[str, str], ...] = (("redirect_dir", "on"), ("volatile", ""))


@dataclass
class _Building:
    """What the steps hand on to each other; the descriptors are closed when the row has ended."""

    request: LaunchRequest
    descriptors: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    image_root: Path = Path()
    layer_roots: list[Path] = field(default_factory=list)
    upper_parent: Path = Path()
    listener: socket.socket | None = None

    def open(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        self.descriptors.callback(os.close, descriptor)
        return descriptor


def _image_sources(config: Config) -> ImageSources:
    return ImageSources(
        ImageBounds(config.max_image_bytes, config.max_image_entries, config.max_image_layers),
        Puller(
            config.root_mountpoint,
            config.unprivileged_id,
            PullBounds(config.max_image_bytes, config.pull_timeout_s),
        ),
    )


class Launcher:
    """Blocking; every method may be called from any thread between `prepare` and `close`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._volumes = choose_store(config)
        self.images = ImageStore(self._volumes, _image_sources(config))
        self.layers = LayerStore(self._volumes)
        self._cgroups = mounted_backend(config.cgroup_parent)
        self._ids = IdRanges(config.state_dir / "id_ranges.json", config.id_base)
        self._lock = threading.Lock()
        self._launched: dict[str, LaunchedSandbox] = {}
        self._images_held: dict[str, str] = {}
        self._init_fd = -1
        self._protected = int(Path("/proc/self/oom_score_adj").read_text()) < 0
        """From being killed when the node's memory runs out, as sandboxes must not be."""
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._steps: tuple[Step[_Building], ...] = (
            Step("run directory", self._make_run_dir, self._remove_run_dir),
            Step("image", self._acquire_image, self._release_image),
            Step("layers", self._hold_layers, self.layers.release),
            Step("upper", self._make_upper, self._remove_upper),
            Step("groups", self._make_groups, self._cgroups.destroy),
            Step("control socket", self._bind_control_socket, self._unbind_control_socket),
            Step("init", self._spawn_init, self._kill_init),
        )

    @property
    def limits_disk(self) -> bool:
        """Whether a sandbox may have a disk limit on this node."""
        return self._volumes.limits_disk

    def prepare(self) -> None:
        """Everything that launching needs and that is common to all sandboxes."""
        self._config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config.sandboxes_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config.root_mountpoint.mkdir(mode=0o755, exist_ok=True)
        try:
            self._init_fd = os.open(INIT_BINARY, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InternalError(
                "the program that becomes init of each sandbox is missing",
                operation="prepare",
                object=str(INIT_BINARY),
                cause=f"{errno_text(error.errno or 0)}; build the native part first",
            ) from error
        compile_filter()
        # First, because it refuses when another daemon uses the groups.
        self._cgroups.prepare()
        self._volumes.open()
        self.images.open()
        self.layers.open()

    def close(self) -> None:
        """Undo `prepare`. Sandboxes that live keep running and can be adopted by the next one."""
        with self._lock:
            launched = list(self._launched.values())
            self._launched.clear()
        for sandbox in launched:
            sandbox.close()
        if self._init_fd >= 0:
            os.close(self._init_fd)
            self._init_fd = -1
        self._cgroups.close()
        if not launched:
            self._volumes.close()

    def launch(self, request: LaunchRequest) -> LaunchedSandbox:
        """All or nothing; returns when init is ready for commands."""
        check_request(request)
        if self._run_dir(request.sandbox_id).exists():
            # Before the first step: undoing it would remove what the other one has.
            raise Conflict("the id is taken", operation="create sandbox", object=request.sandbox_id)
        building = _Building(request)
        with building.descriptors, kernel_errors("create sandbox", request.sandbox_id):
            do_all(self._steps, building, request.sandbox_id)
        with self._lock:
            return self._launched[request.sandbox_id]

    def adopt(self, sandbox_id: str, tenant_uid: int, init_pid: int) -> LaunchedSandbox:
        """Take over a sandbox that an earlier daemon launched; `SandboxGone` if it is not there."""
        check_sandbox_id(sandbox_id)
        try:
            pidfd = os.pidfd_open(init_pid)
        except OSError as error:
            raise not_adoptable(sandbox_id, f"pid {init_pid}: {error.strerror}") from None
        try:
            # The descriptor first, then the check: a pid may have been given to somebody else.
            if not self._cgroups.contains(sandbox_id, init_pid):
                raise not_adoptable(sandbox_id, f"pid {init_pid} is not in its groups")
            with kernel_errors("adopt sandbox", sandbox_id):
                known = json.loads((self._run_dir(sandbox_id) / LAUNCH_FILE).read_text())
            if known["tenant_uid"] != tenant_uid:
                raise not_adoptable(sandbox_id, "it belongs to another tenant")
            self._hold_image(sandbox_id, known["image"])
            layers = known.get("layers", ())
            self.layers.hold(sandbox_id, layers)
        except BaseException:
            os.close(pidfd)
            raise
        launched = self._remember(sandbox_id, init_pid, pidfd, layers)
        launched.left_groups.extend(self._cgroups.exec_ids(sandbox_id))
        return launched

    def destroy(self, sandbox_id: str) -> None:
        """Remove all of a sandbox, whatever there is of it. Idempotent."""
        check_sandbox_id(sandbox_id)
        with kernel_errors("destroy sandbox", sandbox_id):
            undo_all(self._steps, sandbox_id)

    def private_bytes(self) -> int:
        """What all sandboxes of this daemon hold of the node's memory, each its own."""
        with kernel_errors("read accounts", "all sandboxes"):
            return self._cgroups.private_bytes()

    def remnants(self) -> set[str]:
        """Every id of which anything is on this node."""
        with kernel_errors("find remnants", str(self._config.state_dir)):
            directories = set(os.listdir(self._config.sandboxes_dir))
            return directories | self._volumes.names(Collection.UPPERS) | self._cgroups.names()

    def _run_dir(self, sandbox_id: str) -> Path:
        return self._config.sandboxes_dir / sandbox_id

    # -- the steps: `do` takes the building, `undo` the id -----------------------------------------

    def _make_run_dir(self, building: _Building) -> None:
        request = building.request
        run_dir = self._run_dir(request.sandbox_id)
        run_dir.mkdir(mode=0o700)
        known = {
            "image": request.image,
            "tenant_uid": request.tenant_uid,
            "layers": request.layers,
        }
        write_file(run_dir / LAUNCH_FILE, json.dumps(known).encode())

    def _remove_run_dir(self, sandbox_id: str) -> None:
        parent_fd = os.open(self._config.sandboxes_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(parent_fd, sandbox_id)
        finally:
            os.close(parent_fd)

    def _acquire_image(self, building: _Building) -> None:
        request = building.request
        building.image_root = self._hold_image(request.sandbox_id, request.image)

    def _hold_image(self, sandbox_id: str, image: str) -> Path:
        root = self.images.acquire(image)
        with self._lock:
            self._images_held[sandbox_id] = image
        return root

    def _release_image(self, sandbox_id: str) -> None:
        with self._lock:
            image = self._images_held.pop(sandbox_id, None)
        if image is not None:
            self.images.release(image)

    def _hold_layers(self, building: _Building) -> None:
        request = building.request
        building.layer_roots = self.layers.hold(request.sandbox_id, request.layers)

    def _make_upper(self, building: _Building) -> None:
        request = building.request
        building.upper_parent = self._volumes.create(
            Collection.UPPERS,
            request.sandbox_id,
            request.limits.disk_bytes,
            above=request.layers[0] if request.layers else None,
        )
        # `upper` becomes the root directory of the sandbox, with this mode and owner.
        (building.upper_parent / "upper").mkdir(mode=0o755)
        (building.upper_parent / "work").mkdir(mode=0o700)

    def _remove_upper(self, sandbox_id: str) -> None:
        self._volumes.remove(Collection.UPPERS, sandbox_id)

    def _make_groups(self, building: _Building) -> None:
        limits = building.request.limits
        self._cgroups.create(
            building.request.sandbox_id,
            CgroupLimits(limits.memory_bytes, limits.pids, limits.cpu_cores),
        )

    def _bind_control_socket(self, building: _Building) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        building.descriptors.callback(listener.close)
        listener.bind(os.fspath(self._run_dir(building.request.sandbox_id) / CONTROL_SOCKET))
        listener.listen(8)
        building.listener = listener

    def _unbind_control_socket(self, sandbox_id: str) -> None:
        (self._run_dir(sandbox_id) / CONTROL_SOCKET).unlink(missing_ok=True)

    def _spawn_init(self, building: _Building) -> None:
        request = building.request
        spec = IsolationSpec(
            sandbox_id=request.sandbox_id,
            hostname=request.hostname,
            memory_bytes=request.limits.memory_bytes,
            generation=request.generation,
            open_files=self._open_files,
        )
        ops = setup_ops(spec)
        procs_fds = self._cgroups.open_init_procs(request.sandbox_id)
        for descriptor in procs_fds:
            building.descriptors.callback(os.close, descriptor)
        assert building.listener is not None
        try:
            spawned = _native.spawn(
                init_fd=self._init_fd,
                plan_fd=self._plan(building, encode_plan(ops, exec_policy(spec))),
                listen_fd=building.listener.fileno(),
                root_mountpoint=os.fspath(self._config.root_mountpoint),
                lower_fds=[
                    building.open(root, os.O_RDONLY | os.O_DIRECTORY)
                    for root in (*building.layer_roots, building.image_root)
                ],
                upper_parent_fd=building.open(building.upper_parent, os.O_RDONLY | os.O_DIRECTORY),
                id_base=self._ids.base_for(request.tenant_uid),
                cgroup_procs_fds=procs_fds,
                overlay_options=(*OVERLAY_OPTIONS, *self._volumes.overlay_options),
            )
        except _native.NativeError as error:
            raise spawn_error(error, request.sandbox_id, ops) from error
        if self._protected:
            # Also the lowest that a process of the sandbox may set for itself.
            Path(f"/proc/{spawned.pid}/oom_score_adj").write_text("0")
        self._remember(request.sandbox_id, spawned.pid, spawned.pidfd, request.layers)

    @staticmethod
    def _plan(building: _Building, encoded: bytes) -> int:
        plan_fd = os.memfd_create("venus-plan", os.MFD_CLOEXEC)
        building.descriptors.callback(os.close, plan_fd)
        os.write(plan_fd, encoded)
        return plan_fd

    def _remember(
        self, sandbox_id: str, init_pid: int, pidfd: int, layers: Sequence[str]
    ) -> LaunchedSandbox:
        launched = LaunchedSandbox(
            sandbox_id,
            init_pid,
            pidfd,
            self._run_dir(sandbox_id) / CONTROL_SOCKET,
            self._cgroups,
            self._volumes,
            layers,
        )
        with self._lock:
            self._launched[sandbox_id] = launched
        return launched

    def _kill_init(self, sandbox_id: str) -> None:
        with self._lock:
            launched = self._launched.get(sandbox_id)
        if launched is None:
            return  # an init that nobody adopted is killed with the groups
        launched.kill()
        with self._lock:
            del self._launched[sandbox_id]
        launched.close()
