"""Requests about images, as values. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client.types import ImageInfo
from sandboxd.protocol import CONTENT_TYPE_JSON


def list_images() -> Call[list[ImageInfo]]:
    return Call(
        "list images",
        "daemon",
        "GET",
        target("images"),
        lambda b: [ImageInfo.from_json(item) for item in items(b, "images")],
    )


def put_image(name: str) -> Call[ImageInfo]:
    return Call(
        "import image",
        name,
        "PUT",
        target("images", name),
        lambda b: ImageInfo.from_json(decoded(b)),
        b"",
        "application/x-tar",
    )


def import_image(name: str, path: str) -> Call[ImageInfo]:
    return Call(
        "import image",
        name,
        "POST",
        target("images", name, "import"),
        lambda b: ImageInfo.from_json(decoded(b)),
        encoded({"path": path}),
        CONTENT_TYPE_JSON,
    )


def build_base(name: str, suite: str | None, packages: Sequence[str] | None) -> Call[None]:
    return Call(
        "build image",
        name,
        "POST",
        target("images", name, "build-base"),
        nothing,
        encoded(given(suite=suite, packages=list(packages) if packages else None)),
        CONTENT_TYPE_JSON,
    )


def pull_image(
    name: str,
    reference: str,
    username: str | None,
    password: str | None,
    auth_file: str | None,
    insecure: bool,
) -> Call[None]:
    body = given(username=username, password=password, auth_file=auth_file)
    return Call(
        "pull image",
        name,
        "POST",
        target("images", name, "pull"),
        nothing,
        encoded({"reference": reference, "insecure": insecure, **body}),
        CONTENT_TYPE_JSON,
    )


def image_name(reference: str) -> str:
    """The name that a pulled image gets where none is given: `python-3.12` of
    `docker.io/library/python:3.12`."""
    last = reference.partition("@")[0].rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]", "-", last).strip("._-")[:64]


def prune_images(unused_for_s: float, every: bool) -> Call[list[ImageInfo]]:
    return Call(
        "prune images",
        "daemon",
        "POST",
        target("images", "prune"),
        lambda b: [ImageInfo.from_json(item) for item in items(b, "images")],
        encoded({"unused_for_s": unused_for_s, "all": every}),
        CONTENT_TYPE_JSON,
    )


def remove_image(name: str) -> Call[None]:
    return Call("remove image", name, "DELETE", target("images", name), nothing)
