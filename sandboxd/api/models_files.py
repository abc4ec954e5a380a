"""Bodies of the API of a sandbox's files."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sandboxd.api.models import AbsolutePath, Body, UserName

FileType = Literal["file", "directory", "symlink", "fifo", "socket", "char_device", "block_device"]
Owner = Annotated[
    str, StringConstraints(pattern=r"^([^\x00/:]{1,64}(:[^\x00/:]{1,64})?|:[^\x00/:]{1,64})$")
]


class MakeDirectoryRequest(Body):
    """A directory to make inside a sandbox."""

    path: AbsolutePath
    mode: int = Field(default=0o755, ge=0, le=0o7777)
    parents: bool = False
    user: UserName | None = None


class RenameFileRequest(Body):
    """A new name for something inside a sandbox."""

    path: AbsolutePath
    new_path: AbsolutePath
    replace: bool = Field(default=True, description="what has the name already goes, as by mv")
    user: UserName | None = None


class AttributesRequest(Body):
    """Owner and mode for something inside a sandbox; what is null stays."""

    path: AbsolutePath
    mode: int | None = Field(default=None, ge=0, le=0o7777)
    owner: Owner | None = Field(
        default=None, description="USER, which stands for its group too, USER:GROUP, or :GROUP"
    )
    user: UserName | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.mode is None and self.owner is None:
            raise ValueError("neither mode nor owner is given")
        return self


class FileEntry(Body):
    """One object in a sandbox's file tree."""

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = Field(default=None, description="where a symbolic link points")


class FileList(Body):
    """Entries of one directory, down to the depth that was asked for."""

    entries: list[FileEntry]
    truncated: bool = Field(default=False, description="there are more entries than may be listed")
