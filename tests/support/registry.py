"""A registry of images on loopback: Debian's docker-registry, with or without logins."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

USER, PASSWORD = "puller", "hunter2-secret"
# bcrypt of the password, as htpasswd writes it.
_HTPASSWD = "$2b$04$KfesvTZBwb/wWhd0jxoeqe3xU3QTN22JHOV27krYLxdjlnp143N9W"
_CONFIG = """\
version: 0.1
storage:
  filesystem:
    rootdirectory: {data}
http:
  addr: 127.0.0.1:0
"""
_AUTH = """\
auth:
  htpasswd:
    realm: test
    path: {htpasswd}
"""


@dataclass(frozen=True)
class Registry:
    """`host` is what references to its images begin with."""

    host: str
    log: Path

    def push(self, layout: Path, name: str, *, login: bool = False) -> str:
        """The image of an OCI layout; returns its reference."""
        reference = f"{self.host}/{name}"
        credentials = [f"--dest-creds={USER}:{PASSWORD}"] if login else []
        subprocess.run(
            ["skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", *credentials,
             f"oci:{layout}", f"docker://{reference}"],
            check=True, capture_output=True,
        )  # fmt: skip
        return reference


@contextlib.contextmanager
def registry(place: Path, *, login: bool = False) -> Iterator[Registry]:
    """One that runs meanwhile, on a port of its own."""
    if shutil.which("docker-registry") is None or shutil.which("skopeo") is None:
        pytest.skip("docker-registry or skopeo is not installed")
    place.mkdir()
    config, log = place / "config.yml", place / "log"
    text = _CONFIG.format(data=place / "data")
    if login:
        (place / "htpasswd").write_text(f"{USER}:{_HTPASSWD}\n")
        text += _AUTH.format(htpasswd=place / "htpasswd")
    config.write_text(text)
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                break
        else:
            raise AssertionError("the registry ended at its start")
        with log.open("w") as file:
            # Nobody reads on; a full pipe would stop it.
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
        yield Registry(found[1], log)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    drain.wait()
