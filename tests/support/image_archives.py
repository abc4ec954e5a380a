"""Image archives, made by hand: OCI layouts and what `docker save` writes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

UID, GID = os.getuid() % 65536, os.getgid() % 65536
Entry = tuple[str, bytes, str | bytes]
Pack = Callable[[bytes], bytes]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def archive(
    *entries: Entry, format: int = tarfile.PAX_FORMAT, uid: int = UID, mode: int = 0o640
) -> bytes:
    """A tar of (name, type, content or link target) entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.uid, entry.gid, entry.mtime = kind, uid, GID, 1_600_000_000
            entry.mode = 0o755 if kind == tarfile.DIRTYPE else mode
            if isinstance(content, bytes):
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                entry.linkname = content
                tar.addfile(entry)
    return buffer.getvalue()


def file(name: str, content: bytes = b"content") -> Entry:
    return (name, tarfile.REGTYPE, content)


def link(name: str, target: str) -> Entry:
    return (name, tarfile.SYMTYPE, target)


def hard_link(name: str, target: str) -> Entry:
    return (name, tarfile.LNKTYPE, target)


def directory(name: str) -> Entry:
    return (name, tarfile.DIRTYPE, "")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def plain(content: bytes) -> bytes:
    return content


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


PACKS: Mapping[str, Pack] = {"": plain, "+gzip": gzip.compress, "+zstd": zstd}


@dataclass
class Archive:
    """Files by name; the methods add to them and return what leads there."""

    files: dict[str, bytes] = field(default_factory=dict)

    def blob(self, content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        digest = digest_of(content)
        self.files[f"blobs/sha256/{digest.removeprefix('sha256:')}"] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content), **more}

    def document(self, table: Any, media_type: str, **more: Any) -> dict[str, Any]:
        return self.blob(json.dumps(table).encode(), media_type, **more)

    def image(
        self,
        layers: Sequence[bytes],
        config: Mapping[str, Any] | None = None,
        pack: str = "+gzip",
        **more: Any,
    ) -> dict[str, Any]:
        """A manifest of plain tars."""
        configuration = {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest_of(each) for each in layers]},
            "config": dict(config or {}),
        }
        manifest = {
            "schemaVersion": 2,
            "config": self.document(configuration, CONFIG),
            "layers": [self.blob(PACKS[pack](each), LAYER + pack) for each in layers],
        }
        return self.document(manifest, MANIFEST, **more)

    def index(self, *manifests: Mapping[str, Any]) -> None:
        self.files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
        self.files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()

    def write(self, place: Path) -> Path:
        for name, content in self.files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        return place

    def tar(self) -> bytes:
        return archive(*(file(name, content) for name, content in self.files.items()))


def layout(
    layers: Sequence[bytes], config: Mapping[str, Any] | None = None, pack: str = "+gzip"
) -> Archive:
    """An OCI layout of one image."""
    made = Archive()
    made.index(made.image(layers, config, pack))
    return made


def docker_archive(
    layers: Sequence[bytes], config: Mapping[str, Any] | None = None, tag: str = "made:latest"
) -> Archive:
    """What `docker save` wrote before it wrote layouts."""
    configuration = json.dumps(
        {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest_of(each) for each in layers]},
            "config": dict(config or {}),
        }
    ).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    paths = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": paths}]
    return Archive(
        {
            **dict(zip(paths, layers, strict=True)),
            name: configuration,
            "manifest.json": json.dumps(manifest).encode(),
            "repositories": b"{}",
        }
    )


def small_layer(base_image_tar: Path) -> bytes:
    """Of a Debian system, what a shell and a few programs need."""
    programs = ("sh", "dash", "cat", "env", "id", "sleep", "touch", "true")
    wanted = re.compile(
        r"\./(bin|lib|lib64|etc/passwd|etc/group|usr/lib64/.*|tmp|proc|dev|run|sys|"
        rf"usr/bin/({'|'.join(programs)})|"
        r"usr/lib/x86_64-linux-gnu/(libc\.so|ld-linux|libselinux|libpcre2-8).*)"
    )
    buffer = io.BytesIO()
    with (
        tarfile.open(base_image_tar) as source,
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in source:
            if wanted.fullmatch(entry.name):
                tar.addfile(entry, source.extractfile(entry) if entry.isreg() else None)
    return buffer.getvalue()
