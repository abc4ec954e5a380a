"""The JSON documents of OCI and Docker images: index, manifest, configuration. Pure.

Somebody else wrote them: every field is checked for its type, every list is bounded, and what is
not understood is an error rather than a guess.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from sandboxd.errors import InvalidRequest, Unsupported

MAX_DOCUMENT_BYTES = 4 << 20
MAX_DESCRIPTORS = 1024
MAX_ENV_ENTRIES = 1024
# Half of what a create may bring: both go with every command, into one packet.
MAX_ENV_BYTES = 32 << 10
MAX_ARGUMENTS = 1024
MAX_ARGUMENTS_BYTES = 64 << 10
PLATFORM = ("linux", "amd64")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USER = re.compile(r"[^\x00/]{0,128}")
_INDEXES = ("application/vnd.oci.image.index.v1+json",
            "application/vnd.docker.distribution.manifest.list.v2+json")  # fmt: skip


@dataclass(frozen=True)
class Descriptor:
    """Names a blob."""

    digest: str
    media_type: str
    is_index: bool
    platform: tuple[str, str] | None
    reference: str
    """The tag, where it has one."""

    @property
    def path(self) -> str:
        """Where a layout has it."""
        return f"blobs/sha256/{self.digest.removeprefix('sha256:')}"

    @property
    def fits(self) -> bool:
        """Whether it may be for this kind of machine."""
        return self.platform in (None, PLATFORM)


@dataclass(frozen=True)
class ImageDefaults:
    """What an image says of the commands that run in it."""

    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    """This and `command` are kept to be read; nothing runs them."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageConfig:
    """The part of an image's configuration that is used."""

    diff_ids: tuple[str, ...]
    defaults: ImageDefaults


@dataclass(frozen=True)
class DockerEntry:
    """One image of an archive of `docker save`."""

    config: str
    layers: tuple[str, ...]
    tags: tuple[str, ...]


def parse_index(content: bytes) -> list[Descriptor]:
    """The manifests that an index names."""
    table = _object(_document(content, "index"), "index")
    return [_descriptor(each) for each in _list(table, "manifests", MAX_DESCRIPTORS)]


def parse_manifest(content: bytes, max_layers: int) -> tuple[Descriptor, list[Descriptor]]:
    """The configuration and the layers, the lowest first."""
    table = _object(_document(content, "manifest"), "manifest")
    layers = [_descriptor(each) for each in _list(table, "layers", max_layers)]
    for each in layers:
        if "encrypted" in each.media_type or ".tar" not in each.media_type:
            raise Unsupported(
                "such a layer is not supported",
                operation="import image",
                object=each.digest,
                cause=f"its media type is {each.media_type[:200]!r}",
            )
    return _descriptor(table.get("config")), layers


def parse_docker_manifest(content: bytes, max_layers: int) -> list[DockerEntry]:
    """`manifest.json` of `docker save`; `InvalidRequest` also for a file that only has the name."""
    entries = _document(content, "manifest.json")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_DESCRIPTORS:
        raise _refused("manifest.json", "not a list of images")
    return [
        DockerEntry(
            _text(each, "Config"),
            tuple(_texts(each, "Layers", max_layers)),
            tuple(_texts(each, "RepoTags", MAX_DESCRIPTORS)),
        )
        for each in (_object(entry, "manifest.json") for entry in entries)
    ]


def parse_config(content: bytes, max_layers: int) -> ImageConfig:
    """Raises `Unsupported` for an image of another kind of machine."""
    table = _object(_document(content, "configuration"), "configuration")
    platform = (_text(table, "os") or PLATFORM[0], _text(table, "architecture") or PLATFORM[1])
    if platform != PLATFORM:
        raise Unsupported(
            "the image is for another kind of machine",
            operation="import image",
            object="image",
            cause=f"it is for {'/'.join(platform)[:80]}, this is {'/'.join(PLATFORM)}",
        )
    filesystem = _object(table.get("rootfs") or {}, "rootfs")
    diff_ids = _texts(filesystem, "diff_ids", max_layers)
    if not all(_DIGEST.fullmatch(each) for each in diff_ids):
        raise _refused("diff_ids", "not SHA-256 digests")
    return ImageConfig(tuple(diff_ids), _defaults(_object(table.get("config") or {}, "config")))


def _defaults(table: dict[str, Any]) -> ImageDefaults:
    user, cwd = _text(table, "User"), _text(table, "WorkingDir")
    if not _USER.fullmatch(user):
        raise _refused("User", f"{user[:200]!r} is no user")
    if cwd and not cwd.startswith("/"):
        cwd = f"/{cwd}"
    if "\0" in cwd or len(cwd.encode()) > 4095:
        raise _refused("WorkingDir", "not a path")
    arguments = [tuple(_texts(table, name, MAX_ARGUMENTS)) for name in ("Entrypoint", "Cmd")]
    if sum(len(each.encode()) for part in arguments for each in part) > MAX_ARGUMENTS_BYTES:
        raise _refused("Cmd", f"more than {MAX_ARGUMENTS_BYTES} bytes")
    return ImageDefaults(_environment(table), cwd, user, *arguments)


def _environment(table: dict[str, Any]) -> dict[str, str]:
    entries = _texts(table, "Env", MAX_ENV_ENTRIES)
    if sum(len(each.encode()) + 1 for each in entries) > MAX_ENV_BYTES:
        raise _refused("Env", f"more than {MAX_ENV_BYTES} bytes")
    pairs = [each.partition("=") for each in entries]
    if any(not name or len(name) > 256 or "\0" in name + value for name, _, value in pairs):
        raise _refused("Env", "not names with values")
    return {name: value for name, _, value in pairs}


def _descriptor(value: Any) -> Descriptor:
    table = _object(value, "descriptor")
    digest, media_type = _text(table, "digest"), _text(table, "mediaType")
    if not _DIGEST.fullmatch(digest):
        raise _refused("descriptor", f"{digest[:200]!r} is not a SHA-256 digest")
    platform = table.get("platform")
    fields = None if platform is None else _object(platform, "platform")
    notes = _object(table.get("annotations") or {}, "annotations")
    name = notes.get("io.containerd.image.name") or notes.get("org.opencontainers.image.ref.name")
    return Descriptor(
        digest,
        media_type,
        media_type in _INDEXES,
        None if fields is None else (_text(fields, "os"), _text(fields, "architecture")),
        str(name or "")[:200],
    )


def _document(content: bytes, what: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _refused(what, f"not JSON: {error}") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refused(what, "not an object")
    return value


def _text(table: dict[str, Any], name: str) -> str:
    """Empty where it is absent or null."""
    value = table.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or _has_surrogates(value):
        raise _refused(name, "not text")
    return value


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _list(table: dict[str, Any], name: str, most: int) -> list[Any]:
    value = table.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _refused(name, "not a list")
    if len(value) > most:
        raise _refused(name, f"it has {len(value)} entries, at most {most} are taken")
    return value


def _texts(table: dict[str, Any], name: str, most: int) -> list[str]:
    return [_text({name: each}, name) for each in _list(table, name, most)]


def _refused(what: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the image has a document that cannot be taken",
        operation="import image",
        object=what,
        cause=cause[:500],
    )
