"""API keys, and the tokens and signatures made from them."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from sandboxd.e2b.keys import MAX_KEYS, ApiKeys, FileSignature, parse_keys
from sandboxd.errors import InvalidRequest

KEY = "e2b_" + "a" * 40
OTHER = "e2b_" + "b" * 40
ROOT = "e2b_" + "c" * 40
SANDBOX = "sb-0123456789abcdef"


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"# of two tenants\n\n{KEY} 1000 # first\n  {OTHER}\t2000\n{ROOT} 0\n")
    found = ApiKeys(path)
    found.load()
    return found


def test_a_key_is_of_a_tenant(keys: ApiKeys) -> None:
    for text, uid in ((KEY, 1000), (OTHER, 2000), (ROOT, 0)):
        found = keys.find(text)
        assert found is not None and found.tenant_uid == uid
    for wrong in ("", KEY[:-1], KEY + "a", KEY.upper(), "\udcff", "# of"):
        assert keys.find(wrong) is None
    assert len(keys) == 3


def test_a_token_is_of_one_sandbox_and_of_who_sees_it(keys: ApiKeys) -> None:
    first, other, root = (keys.find(text) for text in (KEY, OTHER, ROOT))
    assert first is not None and other is not None and root is not None
    assert keys.of_token(first.token(SANDBOX), SANDBOX, 1000) is first
    assert keys.of_token(root.token(SANDBOX), SANDBOX, 1000) is root
    assert keys.of_token(other.token(SANDBOX), SANDBOX, 1000) is None
    assert keys.of_token(first.token("sb-1"), SANDBOX, 1000) is None
    for wrong in ("", KEY, first.token(SANDBOX)[:-1], "\udcff"):
        assert keys.of_token(wrong, SANDBOX, 1000) is None


def test_a_signature_is_good_for_one_file_and_a_time(keys: ApiKeys) -> None:
    key = keys.find(KEY)
    assert key is not None

    def signature(expires_at: int | None, **wrong: str) -> FileSignature:
        token = key.token(SANDBOX)  # type: ignore[union-attr]
        text = f"/f:read:user:{token}" + ("" if expires_at is None else f":{expires_at}")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        named = {"path": "/f", "operation": "read", "user": "user", **wrong}
        return FileSignature(**named, expires_at=expires_at, presented=f"v1_{digest.rstrip('=')}")

    far = 1 << 40
    assert keys.of_signature(signature(None), SANDBOX, 1000) is key
    assert keys.of_signature(signature(far), SANDBOX, 1000) is key
    assert keys.of_signature(signature(1), SANDBOX, 1000) is None
    assert keys.of_signature(signature(far), SANDBOX, 2000) is None
    assert keys.of_signature(signature(far), "sb-1", 1000) is None
    for wrong in ({"path": "/g"}, {"operation": "write"}, {"user": ""}):
        assert keys.of_signature(signature(far, **wrong), SANDBOX, 1000) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (KEY, "KEY UID"),
        (f"{KEY} 1 2", "KEY UID"),
        (f"{KEY} -1", "uid"),
        (f"{KEY} root", "uid"),
        (f"{KEY} 4294967295", "uid"),
        ("short 1", "20 to 256"),
        ("x" * 257 + " 1", "20 to 256"),
        (f"{KEY} 1\n{KEY} 2", "already"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(text: str, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause) as caught:
        parse_keys(f"# comment\n{text}\n", "FILE")
    assert "line" in str(caught.value)
    assert KEY not in str(caught.value)


def test_keys_are_bounded() -> None:
    lines = [f"{number:040d} 1" for number in range(MAX_KEYS + 1)]
    assert len(parse_keys("\n".join(lines[:-1]), "FILE")) == MAX_KEYS
    with pytest.raises(InvalidRequest, match="more than"):
        parse_keys("\n".join(lines), "FILE")


def test_a_file_that_others_may_read_is_refused_and_changes_nothing(
    tmp_path: Path, keys: ApiKeys
) -> None:
    path = tmp_path / "keys"
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(InvalidRequest, match="600"):
            keys.load()
    path.unlink()
    with pytest.raises(InvalidRequest):
        keys.load()
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidRequest, match="regular"):
        keys.load()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest):
        keys.load()
    assert keys.find(KEY) is not None
