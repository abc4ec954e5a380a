"""Requests about images, as values. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client._lines import LineDecoder
from sandboxd.client.errors import ConnectionLost
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


class ProgressLines:
    """Takes an answer apart that tells how something goes on; the last line is its end."""

    def __init__(self, operation: str, key: str) -> None:
        self._operation, self._key = operation, key
        self._decoder = LineDecoder()
        self._result: Any = None

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The lines of progress in it; raises the error that the daemon tells of."""
        for value in self._decoder.feed(chunk):
            if "line" in value:
                yield str(value["line"])
            self._result = value.get(self._key, self._result)

    def result(self) -> Any:
        """What came of it, once the answer has ended."""
        if self._result is None:
            raise ConnectionLost("the answer ended before its end", operation=self._operation)
        return self._result


def remove_image(name: str) -> Call[None]:
    return Call("remove image", name, "DELETE", target("images", name), nothing)
