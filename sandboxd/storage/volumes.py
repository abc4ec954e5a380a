"""What a store of volumes can do, whatever lies below, and the steps all stores share."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from sandboxd.errors import InternalError, StorageFull, VenusError, errno_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Collection(enum.Enum):
    """A kind of volume; the value is the name of its directory."""

    UPPERS = "uppers"
    IMAGES = "images"
    INCOMING = "incoming"
    LAYERS = "layers"


class StorageConfig(Protocol):
    """The part of the daemon's configuration that storage reads."""

    @property
    def state_dir(self) -> Path: ...
    @property
    def storage_dir(self) -> Path: ...
    @property
    def storage_size_bytes(self) -> int: ...
    @property
    def storage_backend(self) -> Literal["auto", "btrfs", "plain"]: ...


class VolumeStore(Protocol):
    """Blocking; every method may be called from any thread once `open` has returned."""

    @property
    def limits_disk(self) -> bool:
        """Whether `create` accepts a byte limit."""

    @property
    def overlay_options(self) -> tuple[tuple[str, str], ...]:
        """What an overlay of an image and an upper must be told."""

    def open(self) -> None:
        """Make the collections reachable. Idempotent."""

    def close(self) -> None:
        """Undo `open`; the contents stay. Idempotent."""

    def path(self, collection: Collection, name: str) -> Path:
        """Where the volume stands, or would stand."""

    def create(
        self, collection: Collection, name: str, disk_bytes: int | None, above: str | None = None
    ) -> Path:
        """Make a volume without `upper`; `FileExistsError` if it exists.

        `above`: the layer on which its files will lie, whose numbers they do not get.
        """

    def rename(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        """Move a volume in one step; `FileExistsError` if the target exists."""

    def remove(self, collection: Collection, name: str) -> None:
        """Remove a volume and all in it; no error if there is none."""

    def flush(self, collection: Collection, name: str) -> None:
        """Write out what the page cache holds of a volume, so that `freeze` finds little to do."""

    def freeze(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        """Make a new volume that holds `upper` of the source as it is now, and never changes.

        `FileExistsError` if the target exists. Nobody may write to the source meanwhile.
        """

    def derive(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        """As `freeze`, of a source that never changes; the new volume may change until `settle`."""

    def settle(self, collection: Collection, name: str) -> None:
        """A derived volume never changes from here on."""

    def used_bytes(self, collection: Collection, name: str) -> int | None:
        """What the volume occupies, as of a few seconds ago; None where nobody counts."""

    def names(self, collection: Collection) -> set[str]:
        """The volumes that exist."""


def checked_name(name: str) -> str:
    """`name`, if it is one plain path component; guards every path made of it."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of a volume: {name!r}")
    return name


@contextlib.contextmanager
def storage_errors(operation: str, object: str) -> Iterator[None]:
    """Turn what the kernel says about the host's storage into this project's errors."""
    try:
        yield
    except ConnectionError:  # whoever sends what is being stored went away
        raise
    except OSError as error:
        raise storage_error(error, operation, object) from error


def storage_error(error: OSError, operation: str, object: str) -> VenusError:
    """The error to raise for a failed call on the host's storage."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    error_class = StorageFull if full else InternalError
    cause = errno_text(error.errno) if error.errno else str(error)
    return error_class(
        "the storage of the node refused", operation=operation, object=object, cause=cause
    )


def make_collections(root: Path) -> None:
    """Create the collection directories below `root`, reachable by root alone."""
    os.chmod(root, 0o700)
    for collection in Collection:
        (root / collection.value).mkdir(mode=0o700, exist_ok=True)
