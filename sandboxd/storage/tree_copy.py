"""A copy of a tree whose shape a sandbox chose, with all that an overlay keeps in it.

GNU cp does it: whiteouts (device nodes), attributes, hard links, holes, owners and times come over,
symbolic links are copied and never followed, and where the filesystem can share blocks it does.

Does not handle: a tree that changes meanwhile; the caller stops whoever could write to it.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

_COMMAND = ("cp", "--archive", "--reflink=auto", "--sparse=auto", "--one-file-system", "--")


def copy_tree(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which must not exist; `OSError` when anything was left out."""
    done = subprocess.run(
        [*_COMMAND, source, target],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        message = done.stderr[:2000].decode(errors="replace").strip()
        full = os.strerror(errno.ENOSPC) in message
        raise OSError(errno.ENOSPC if full else errno.EIO, message, str(source))
