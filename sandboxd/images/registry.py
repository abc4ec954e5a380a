"""References to images in registries, who asks for them, and what went wrong there. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sandboxd.errors import (
    ImageNotFound,
    InternalError,
    InvalidRequest,
    StorageFull,
    Unauthorized,
    Unreachable,
    VenusError,
)

OPERATION = "pull image"
MAX_REFERENCE_LENGTH = 512
MAX_AUTH_BYTES = 1 << 20
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
_DEFAULT_REGISTRY = "docker.io"
_CAUSES: Sequence[tuple[re.Pattern[str], type[VenusError], str]] = (
    (re.compile(r"no space left|disk quota"), StorageFull, "the storage of the node is full"),
    (
        re.compile(r"manifest unknown|name unknown|not known to registry|404"),
        ImageNotFound,
        "the registry has no such image",
    ),
    (
        re.compile(r"unauthorized|authentication required|invalid username|denied|forbidden"),
        Unauthorized,
        "the registry refuses; it may want other credentials",
    ),
    (
        re.compile(
            r"x509|tls:|http response to https|dial tcp|no such host|connection re|timeout|"
            r"network is unreachable|eof|pinging container registry|received unexpected http status"
        ),
        Unreachable,
        "the registry cannot be reached",
    ),
)


NO_AUTHS = b'{"auths": {}}'


@dataclass(frozen=True)
class PullWish:
    """What to pull, and how."""

    reference: str
    insecure: bool = False
    """Plain HTTP, and certificates that nobody vouches for."""
    auths: bytes = field(default=NO_AUTHS, repr=False)
    """Credentials by registry, as `auth.json` has them."""


def checked_reference(reference: str) -> str:
    """Without a leading `docker://`; `InvalidRequest` for what names no image in a registry."""
    plain = reference.removeprefix("docker://")
    if len(plain) > MAX_REFERENCE_LENGTH or not _REFERENCE.fullmatch(plain):
        raise InvalidRequest(
            "not a reference to an image in a registry",
            operation=OPERATION,
            object=plain[:100],
            cause="[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]",
        )
    return plain


def login(reference: str, username: str, password: str) -> bytes:
    """`auths` of one login, at the registry of a checked reference."""
    if ":" in username:
        raise InvalidRequest(
            "the name is refused", operation=OPERATION, object="field username", cause="a colon"
        )
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    return json.dumps({"auths": {_registry_of(reference): {"auth": pair}}}).encode()


def _registry_of(reference: str) -> str:
    host, slash, _ = reference.partition("/")
    named = slash and (host == "localhost" or any(mark in host for mark in ".:["))
    return host if named else _DEFAULT_REGISTRY


def checked_auths(content: bytes, file: str) -> bytes:
    """The credentials of a file as `podman login` and `docker login` write it, and nothing else of
    it: it may also name programs to run."""
    try:
        auths = json.loads(content)["auths"]
        if not isinstance(auths, dict):
            raise TypeError("auths is no object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # The content itself must not be quoted anywhere.
        raise InvalidRequest(
            "the file holds no credentials",
            operation=OPERATION,
            object=file,
            cause=f"not JSON with `auths`: {type(error).__name__}",
        ) from None
    return json.dumps({"auths": auths}).encode()


def pull_error(reference: str, status: int, last_lines: Sequence[str]) -> VenusError:
    """What the program said when it failed."""
    said = " | ".join(last_lines)[-2000:]
    for pattern, error_class, message in _CAUSES:
        if pattern.search(said.lower()):
            return error_class(message, operation=OPERATION, object=reference, cause=said)
    return InternalError(
        "skopeo failed", operation=OPERATION, object=reference, cause=f"status {status}: {said}"
    )
