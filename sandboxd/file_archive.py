"""Whole directories of a sandbox as tar archives.

Packing and unpacking is init's own, with the sandbox's rights; the daemon only moves bytes and
never looks into an archive.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from sandboxd import init_protocol
from sandboxd.file_operation import FileTarget, download, upload
from sandboxd.file_ops import TRANSFER_TIMEOUT_MS


def read(target: FileTarget) -> AsyncGenerator[bytes, None]:
    """The directory as a tar archive. Errors come with the first chunk or, on the way, later."""
    return download(
        target,
        "read directory",
        lambda exec_id: init_protocol.tar_request(
            exec_id, target.path, user=target.user, timeout_ms=TRANSFER_TIMEOUT_MS
        ),
    )


async def write(
    target: FileTarget, body: AsyncIterator[bytes], *, max_bytes: int, owners: bool
) -> None:
    """Unpack an archive below the directory, which is made if it is not there.

    `owners`: as the archive has them, which takes the sandbox's root; else all is the user's. What
    was unpacked before an error stays.
    """
    await upload(
        target,
        "write directory",
        lambda exec_id: init_protocol.untar_request(
            exec_id, target.path, user=target.user, owners=owners, timeout_ms=TRANSFER_TIMEOUT_MS
        ),
        body,
        max_bytes,
    )
