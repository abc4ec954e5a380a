"""Who asks: API keys, each of one tenant, and the tokens of sandboxes made from them.

The file has a line for each key: the key, then the tenant's uid, separated by blanks; `#` begins a
comment. It is root's alone. What is presented is compared by its digest, with every key and in a
time that does not tell how much of it was right.

The token of a sandbox is computed from the key that asked for it, so nothing is stored: it is good
as long as the key and the sandbox are, also after a restart of the daemon.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stat as stat_bits
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandboxd.errors import InvalidRequest

MAX_KEYS = 1024
MIN_KEY_LENGTH = 20
MAX_KEY_LENGTH = 256
_MAX_FILE_BYTES = MAX_KEYS * (MAX_KEY_LENGTH + 64)
_MAX_UID = (1 << 32) - 2
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_LENGTH},{MAX_KEY_LENGTH}}}")
_OPERATION = "load API keys"


@dataclass(frozen=True)
class ApiKey:
    """One key; neither it nor a token can be computed from what is kept."""

    tenant_uid: int
    digest: bytes
    secret: bytes

    @classmethod
    def of(cls, text: str, tenant_uid: int) -> ApiKey:
        """From the key itself."""
        encoded = text.encode()
        return cls(
            tenant_uid,
            hashlib.sha256(encoded).digest(),
            hmac.digest(encoded, b"sandboxd e2b tokens", "sha256"),
        )

    def token(self, sandbox_id: str) -> str:
        """What lets its holder into that sandbox."""
        return hmac.digest(self.secret, sandbox_id.encode(), "sha256").hex()


class ApiKeys:
    """The keys of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[ApiKey, ...] = ()

    def __len__(self) -> int:
        return len(self._keys)

    def load(self) -> None:
        """Read the file; `InvalidRequest`, and the keys as before, when it is not as it must be."""
        self._keys = parse_keys(_read_private(self._path), str(self._path))

    def find(self, presented: str) -> ApiKey | None:
        """The key that was presented."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def of_token(self, token: str, sandbox_id: str, tenant_uid: int) -> ApiKey | None:
        """The key that gave the token for that sandbox of that tenant."""
        found = None
        for key in self._that_see(tenant_uid):
            if hmac.compare_digest(key.token(sandbox_id).encode(), _bytes(token)):
                found = key
        return found

    def of_signature(
        self, signature: FileSignature, sandbox_id: str, tenant_uid: int
    ) -> ApiKey | None:
        """The key whose token for the sandbox signed a link to a file, which is still good."""
        found = None
        for key in self._that_see(tenant_uid):
            wanted = signature.expected(key.token(sandbox_id))
            if hmac.compare_digest(wanted.encode(), _bytes(signature.presented)):
                found = key
        expired = signature.expires_at is not None and signature.expires_at < time.time()
        return None if expired else found

    def _that_see(self, tenant_uid: int) -> Iterable[ApiKey]:
        """Those of the tenant, and root's."""
        return (key for key in self._keys if key.tenant_uid in (0, tenant_uid))


@dataclass(frozen=True)
class FileSignature:
    """Of a link that lets its holder read or write one file, without a token."""

    path: str
    operation: str
    """`read` or `write`."""
    user: str
    expires_at: int | None
    presented: str

    def expected(self, token: str) -> str:
        """What the holder of the token signs."""
        parts = [self.path, self.operation, self.user, token]
        if self.expires_at is not None:
            parts.append(str(self.expires_at))
        digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogateescape")).digest()
        return "v1_" + base64.b64encode(digest).rstrip(b"=").decode()


def parse_keys(text: str, source: str) -> tuple[ApiKey, ...]:
    """The keys of a file's content; `InvalidRequest` names the line, never its content."""
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        where = f"{source} line {number}"
        if len(fields) != 2:
            raise _refused(where, "a line is KEY UID")
        if not _KEY.fullmatch(fields[0]):
            raise _refused(
                where, f"a key is {MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} visible ASCII characters"
            )
        uid = fields[1]
        if not (uid.isascii() and uid.isdigit() and len(uid) <= 10 and int(uid) <= _MAX_UID):
            raise _refused(where, "a uid is a number")
        key = ApiKey.of(fields[0], int(uid))
        if key.digest in keys:
            raise _refused(where, "the key is there already")
        keys[key.digest] = key
        if len(keys) > MAX_KEYS:
            raise _refused(where, f"more than {MAX_KEYS} keys")
    return tuple(keys.values())


def _read_private(path: Path) -> str:
    """The content of a regular file that nobody but its owner, who is this process's user, may
    read or write."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat_bits.S_ISREG(status.st_mode):
                raise _refused(str(path), "not a regular file")
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise _refused(str(path), "it must be root's, with mode 600")
            with open(fd, "rb", closefd=False) as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        finally:
            os.close(fd)
        if len(content) > _MAX_FILE_BYTES:
            raise _refused(str(path), f"larger than {_MAX_FILE_BYTES} bytes")
        return content.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(str(path), str(error)) from error


def _refused(object: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the file of keys is refused", operation=_OPERATION, object=object, cause=cause
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
