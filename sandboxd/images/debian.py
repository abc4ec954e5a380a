"""Bootstraps a minimal Debian as a tar stream, by mmdebstrap."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, BinaryIO

from sandboxd.errors import InternalError, InvalidRequest, Unsupported, VenusError

DEFAULT_SUITE = "bookworm"
DEFAULT_PACKAGES = ("python3-minimal", "procps")
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,99}")
# Names of this host, which would otherwise be copied into the image.
_FORGET_HOST = 'rm -f "$1/etc/resolv.conf" "$1/etc/hostname"'
_LAST_LINES = 20


@contextlib.contextmanager
def bootstrap(
    suite: str, packages: Sequence[str], on_line: Callable[[str], None]
) -> Iterator[BinaryIO]:
    """The tar of a fresh system; progress goes to `on_line`, called from another thread.

    Leaving the context raises if mmdebstrap failed: a stream that ended is not yet a success.
    """
    for name in (suite, *packages):
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "not a name of a suite or package", operation="build base image", object=name
            )
    program = shutil.which("mmdebstrap")
    if program is None:
        raise Unsupported(
            "a base image cannot be built here",
            operation="build base image",
            object=suite,
            cause="mmdebstrap is not installed (Debian package mmdebstrap)",
        )
    command = [
        program, "--variant=minbase", "--format=tar", f"--include={','.join(packages)}",
        f"--customize-hook={_FORGET_HOST}", suite, "-",
    ]  # fmt: skip
    last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    progress = threading.Thread(
        target=_report, args=(process.stderr, last_lines, on_line), daemon=True
    )
    progress.start()
    try:
        try:
            yield process.stdout  # type: ignore[misc]
        except VenusError as error:
            # A stream that ended early is the symptom; if the program failed, that is the cause.
            if process.stdout.read(1) or process.wait() == 0:
                raise
            progress.join()
            raise _failed(suite, process.returncode, last_lines) from error
        if process.wait() != 0:
            progress.join()
            raise _failed(suite, process.returncode, last_lines)
    finally:
        if process.poll() is None:
            process.terminate()  # it unmounts what it has mounted
            process.wait()
        progress.join()
        process.stdout.close()
        process.stderr.close()


def _failed(suite: str, status: int, last_lines: Iterable[str]) -> InternalError:
    return InternalError(
        "mmdebstrap failed",
        operation="build base image",
        object=suite,
        cause=f"exit status {status}: {' | '.join(last_lines)}"[-2000:],
    )


def _report(
    stream: IO[bytes], last_lines: collections.deque[str], on_line: Callable[[str], None]
) -> None:
    for raw in stream:
        line = raw.decode("utf-8", "replace").rstrip()
        last_lines.append(line)
        on_line(line)
