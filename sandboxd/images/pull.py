"""Fetches images from registries into OCI layouts, by skopeo.

skopeo reads what strangers send, so it runs with an id of its own and no capability, in a mount
namespace where the one directory that it may write is mounted where it can reach it: the state
directory itself is closed to everybody but root. Credentials reach it as a memory file that is open
in this one process; they are on no command line, in no environment and on no disk.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandboxd.errors import (
    Conflict,
    InvalidRequest,
    OperationTimeout,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from sandboxd.images.documents import PLATFORM
from sandboxd.images.registry import (
    MAX_AUTH_BYTES,
    OPERATION,
    PullWish,
    checked_auths,
    pull_error,
)

LAYOUT = "layout"
_POLL_S = 0.2
_LAST_LINES = 10
_MAX_LINE_BYTES = 2000
# Replaces itself by the program, so that one process is all there is to kill.
_ENTER = 'mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"'
_PASSED_ON = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


def read_auth_file(path: Path) -> bytes:
    """The credentials in a file of root's that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(
            "the file with credentials cannot be read",
            operation=OPERATION,
            object=str(path),
            cause=str(error.strerror),
        ) from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o077:
            raise Unauthorized(
                "the file with credentials is not root's alone",
                operation=OPERATION,
                object=str(path),
                cause=f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}; chmod 600",
            )
        return checked_auths(file.read(MAX_AUTH_BYTES), str(path))


@dataclass(frozen=True)
class PullBounds:
    """How much one pull may take."""

    max_bytes: int
    timeout_s: float


class Puller:
    """Blocking; may be used by several threads."""

    def __init__(self, mountpoint: Path, uid: int, bounds: PullBounds) -> None:
        self._mountpoint = mountpoint
        self._uid = uid
        self._bounds = bounds
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Whatever is being fetched fails soon, and so does what comes later."""
        self._stopping.set()

    def fetch(
        self,
        wish: PullWish,
        directory: Path,
        on_line: Callable[[str], None],
        cancelled: threading.Event,
    ) -> Path:
        """The image as an OCI layout below an empty directory; progress goes to `on_line`, called
        from another thread. Returns where the layout lies."""
        if shutil.which("skopeo") is None:
            raise Unsupported(
                "images cannot be pulled here",
                operation=OPERATION,
                object=wish.reference,
                cause="skopeo is not installed (Debian package skopeo)",
            )
        os.chmod(directory, 0o700)
        os.chown(directory, self._uid, self._uid)
        last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        with _memory_file(wish.auths, self._uid) as auth_fd:
            process = subprocess.Popen(
                self._command(wish, directory, auth_fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                pass_fds=(auth_fd,),
                start_new_session=True,
            )
        assert process.stdout is not None
        reading = threading.Thread(
            target=_report, args=(process.stdout, last_lines, on_line), daemon=True
        )
        reading.start()
        try:
            self._wait(process, wish, directory, cancelled)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            reading.join()
            process.stdout.close()
        if process.returncode != 0:
            raise pull_error(wish.reference, process.returncode, last_lines)
        return directory / LAYOUT

    def _command(self, wish: PullWish, directory: Path, auth_fd: int) -> list[str]:
        policy = [] if Path("/etc/containers/policy.json").exists() else ["--insecure-policy"]
        return [
            "unshare", "--mount", "--propagation", "slave", "--",
            "sh", "-c", _ENTER, "sh", os.fspath(directory), os.fspath(self._mountpoint),
            "setpriv", f"--reuid={self._uid}", f"--regid={self._uid}", "--clear-groups",
            "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL", "--",
            "skopeo", *policy, f"--override-os={PLATFORM[0]}", f"--override-arch={PLATFORM[1]}",
            "copy", f"--authfile=/proc/self/fd/{auth_fd}",
            f"--src-tls-verify={'false' if wish.insecure else 'true'}",
            f"docker://{wish.reference}", f"oci:{LAYOUT}",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        place = os.fspath(self._mountpoint)
        passed_on = {
            name: os.environ[name]
            for each in _PASSED_ON
            for name in (each, each.lower())
            if name in os.environ
        }
        path = os.environ.get("PATH", os.defpath)
        places = dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR"), place)
        return {**passed_on, **places, "PATH": path, "LC_ALL": "C"}

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        wish: PullWish,
        directory: Path,
        cancelled: threading.Event,
    ) -> None:
        deadline = time.monotonic() + self._bounds.timeout_s
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return
            if _size_bytes(directory) > self._bounds.max_bytes:
                raise TooLarge(
                    "the image is too large",
                    operation=OPERATION,
                    object=wish.reference,
                    cause=f"more than {self._bounds.max_bytes} bytes came",
                )
            if time.monotonic() > deadline:
                raise OperationTimeout(
                    "the registry took too long",
                    operation=OPERATION,
                    object=wish.reference,
                    cause=f"pull_timeout_s is {self._bounds.timeout_s:g}",
                )
            if self._stopping.is_set() or cancelled.is_set():
                raise Conflict(
                    "the pull was given up",
                    operation=OPERATION,
                    object=wish.reference,
                    cause="the daemon is stopping" if self._stopping.is_set() else "nobody waits",
                )


@contextlib.contextmanager
def _memory_file(content: bytes, uid: int) -> Iterator[int]:
    descriptor = os.memfd_create("registry-auth", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, 0o400)
        os.fchown(descriptor, uid, uid)
        yield descriptor
    finally:
        os.close(descriptor)


def _report(
    stream: IO[bytes], last_lines: collections.deque[str], on_line: Callable[[str], None]
) -> None:
    while raw := stream.readline(_MAX_LINE_BYTES):
        line = raw.decode("utf-8", "replace").rstrip()
        last_lines.append(line)
        on_line(line)


def _size_bytes(directory: Path) -> int:
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total
