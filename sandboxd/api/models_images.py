"""Bodies of the API of images."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sandboxd.api.models import AbsolutePath, Body

Suite = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.:-]{1,127}$")]


class ImageInfo(Body):
    """An image in the store."""

    name: str
    digest: str = Field(
        description="of the stream that it was made from, or of an archived image's configuration; "
        "empty: a directory"
    )
    source: str = Field(description="what it was made from, in words")
    size_bytes: int
    created_at: float
    env: dict[str, str] = Field(description="of its sandboxes, unless they name others")
    cwd: str
    user: str
    entrypoint: list[str] = Field(description="as the archive says; never run")
    command: list[str]


class ImageList(Body):
    """All images of the node."""

    images: list[ImageInfo]


class ImportImageRequest(Body):
    """A directory on the host to copy an image from; root only."""

    path: AbsolutePath


class BuildBaseRequest(Body):
    """A Debian base image to build with mmdebstrap; root only."""

    suite: Suite | None = Field(default=None, description="null: the current stable release")
    packages: list[PackageName] | None = Field(
        default=None,
        max_length=512,
        description="on top of the minimal base; null: python3-minimal, procps",
    )
