"""Bodies of the API of images."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

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


class PruneImagesRequest(Body):
    """Which images go that nothing uses; root only."""

    unused_for_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    all: bool = Field(default=False, description="also those that were not pulled")


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


class PullImageRequest(Body):
    """An image of a registry; root only."""

    reference: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]"
    )
    username: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    password: Annotated[SecretStr, Field(max_length=16 << 10)] | None = None
    auth_file: AbsolutePath | None = Field(
        default=None,
        description="as podman login writes it, root's alone; null: the daemon's, if there is one",
    )
    insecure: bool = Field(default=False, description="plain HTTP, or any certificate")

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.username is not None and self.auth_file is not None:
            raise ValueError("a login and auth_file exclude each other")
        return self
