"""Requests about a sandbox's files, as values. No I/O here."""

from __future__ import annotations

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client.types import FileEntry, FileListing
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_JSON, CONTENT_TYPE_TAR


def read_file(sandbox_id: str, path: str, user: str | None) -> Call[bytes]:
    return Call(
        "read file",
        path,
        "GET",
        target("sandboxes", sandbox_id, "files", path=path, user=user),
        bytes,
    )


def write_file(
    sandbox_id: str,
    path: str,
    user: str | None,
    mode: int | None,
    owner: str | None,
    data: bytes = b"",
) -> Call[None]:
    return Call(
        "write file",
        path,
        "PUT",
        target(
            "sandboxes",
            sandbox_id,
            "files",
            path=path,
            user=user,
            mode=None if mode is None else f"{mode:o}",
            owner=owner,
        ),
        nothing,
        data,
        CONTENT_TYPE_BYTES,
    )


def remove_file(sandbox_id: str, path: str, user: str | None, *, recursive: bool) -> Call[None]:
    return Call(
        "remove file",
        path,
        "DELETE",
        target(
            "sandboxes",
            sandbox_id,
            "files",
            path=path,
            user=user,
            recursive="true" if recursive else None,
        ),
        nothing,
    )


def stat_file(sandbox_id: str, path: str, user: str | None, *, follow: bool) -> Call[FileEntry]:
    return Call(
        "stat file",
        path,
        "GET",
        target(
            "sandboxes",
            sandbox_id,
            "files",
            "stat",
            path=path,
            user=user,
            follow="true" if follow else None,
        ),
        lambda b: FileEntry.from_json(decoded(b)),
    )


def list_files(sandbox_id: str, path: str, user: str | None, depth: int) -> Call[FileListing]:
    def parse(body: bytes) -> FileListing:
        entries = tuple(FileEntry.from_json(item) for item in items(body, "entries"))
        return FileListing(entries, bool(decoded(body).get("truncated", False)))

    return Call(
        "list directory",
        path,
        "GET",
        target("sandboxes", sandbox_id, "files", "list", path=path, user=user, depth=depth),
        parse,
    )


def make_directory(
    sandbox_id: str, path: str, user: str | None, mode: int, *, parents: bool
) -> Call[None]:
    return Call(
        "make directory",
        path,
        "POST",
        target("sandboxes", sandbox_id, "files", "mkdir"),
        nothing,
        encoded(given(path=path, mode=mode, parents=parents, user=user)),
        CONTENT_TYPE_JSON,
    )


def read_directory(sandbox_id: str, path: str, user: str | None) -> Call[bytes]:
    return Call(
        "read directory",
        path,
        "GET",
        target("sandboxes", sandbox_id, "files", "tar", path=path, user=user),
        bytes,
    )


def write_directory(sandbox_id: str, path: str, user: str | None, *, owners: bool) -> Call[None]:
    return Call(
        "write directory",
        path,
        "PUT",
        target(
            "sandboxes",
            sandbox_id,
            "files",
            "tar",
            path=path,
            user=user,
            owners="true" if owners else None,
        ),
        nothing,
        content_type=CONTENT_TYPE_TAR,
    )


def watch_directory(sandbox_id: str, path: str, user: str | None, *, recursive: bool) -> Call[None]:
    return Call(
        "watch directory",
        path,
        "GET",
        target(
            "sandboxes",
            sandbox_id,
            "files",
            "watch",
            path=path,
            user=user,
            recursive="true" if recursive else None,
        ),
        nothing,
    )


def rename_file(
    sandbox_id: str, path: str, new_path: str, user: str | None, *, replace: bool
) -> Call[None]:
    return Call(
        "rename file",
        path,
        "POST",
        target("sandboxes", sandbox_id, "files", "rename"),
        nothing,
        encoded(given(path=path, new_path=new_path, replace=replace, user=user)),
        CONTENT_TYPE_JSON,
    )


def set_attributes(
    sandbox_id: str, path: str, user: str | None, *, mode: int | None, owner: str | None
) -> Call[None]:
    return Call(
        "set attributes",
        path,
        "POST",
        target("sandboxes", sandbox_id, "files", "attributes"),
        nothing,
        encoded(given(path=path, mode=mode, owner=owner, user=user)),
        CONTENT_TYPE_JSON,
    )
