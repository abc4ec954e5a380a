"""cp."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from sandboxd.cli.copied_tree import pack, partial, unpack
from sandboxd.client import FileEntry, FileType, Sandbox
from sandboxd.errors import NotFound


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("-r", "--recursive", is_flag=True, help="Copy directories.")
@click.option("-u", "--user", help="User inside the sandbox.  [default: the sandbox's]")
@click.pass_obj
def cp(socket: str, source: str, destination: str, recursive: bool, user: str | None) -> None:
    """Copy a file between here and a sandbox: one side is SANDBOX:PATH, the other a local path.

    `-` is standard input or output. Into an existing directory, the copy keeps its name.
    Symbolic links and special files in directories are skipped, with a word on standard error.
    """
    remote_source, remote_destination = as_remote(source), as_remote(destination)
    if (remote_source is None) == (remote_destination is None):
        raise click.UsageError("exactly one of the two must be SANDBOX:PATH")
    remote = remote_source or remote_destination
    assert remote is not None
    sandbox = Sandbox.connect(remote.sandbox_id, socket=socket)
    copier = _Copier(sandbox, user, recursive)
    try:
        if remote_source is not None:
            copier.download(remote_source.path, destination)
        else:
            copier.upload(source, remote.path)
    except OSError as error:
        raise click.ClickException(
            f"copy {source} to {destination}: {error.filename or ''}: {error.strerror or error}"
        ) from error
    finally:
        sandbox.close()


@dataclass(frozen=True)
class Remote:
    """Something in a sandbox."""

    sandbox_id: str
    path: str


def as_remote(text: str) -> Remote | None:
    """SANDBOX:PATH; None for a local path."""
    sandbox_id, colon, path = text.partition(":")
    # `./a:b` and `/a:b` are local paths, as for scp.
    if not colon or "/" in sandbox_id or not sandbox_id:
        return None
    if not path.startswith("/"):
        raise click.UsageError(f"{text}: the path in a sandbox must be absolute")
    return Remote(sandbox_id, path)


class _Copier:
    def __init__(self, sandbox: Sandbox, user: str | None, recursive: bool) -> None:
        self._files = sandbox.files
        self._user = user
        self._recursive = recursive

    def upload(self, source: str, target: str) -> None:
        if source == "-":
            self._files.write(target, sys.stdin.buffer, user=self._user)
            return
        local = Path(source)
        if self._type(target) is FileType.DIRECTORY:
            target = str(PurePosixPath(target) / local.absolute().name)
        if local.is_dir():
            self._need_recursive(source)
            archive = pack(local, _skipped, itself=self._type(target) is None)
            self._files.write_dir(target, archive, user=self._user)
        else:
            self._upload_file(local, target)

    def _upload_file(self, local: Path, target: str) -> None:
        with local.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
            self._files.write(target, file, user=self._user, mode=mode)

    def download(self, source: str, target: str) -> None:
        if target == "-":
            for chunk in self._content(source):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        local = Path(target)
        if local.is_dir():
            local = local / PurePosixPath(source).name
        entry = self._files.stat(source, user=self._user)
        if entry.type is FileType.DIRECTORY:
            self._need_recursive(source)
            archive = self._files.read_dir(source, user=self._user)
            unpack(archive, local, lambda name: _skipped(str(PurePosixPath(source) / name)))
        else:
            self._download_file(source, local, entry)

    def _download_file(self, source: str, local: Path, entry: FileEntry) -> None:
        with partial(local) as (file, _):
            for chunk in self._content(source):
                file.write(chunk)
            if entry.type is FileType.FILE:
                os.fchmod(file.fileno(), entry.mode & 0o777)

    def _content(self, path: str) -> Iterator[bytes]:
        return self._files.read(path, "stream", user=self._user)

    def _type(self, path: str) -> FileType | None:
        try:
            return self._files.stat(path, user=self._user).type
        except NotFound:
            return None

    def _need_recursive(self, path: str) -> None:
        if not self._recursive:
            raise click.UsageError(f"{path} is a directory; give -r to copy it")


def _skipped(path: str) -> None:
    click.echo(f"venus-sandbox: skipped {path}: neither a file nor a directory", err=True)
