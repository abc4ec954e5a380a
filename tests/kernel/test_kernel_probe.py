"""kernel-probe says what is usable by using it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.init_harness import INIT

PROBE = INIT.with_name("kernel-probe")
NEEDED = ("namespaces", "pidfd", "close_range", "seccomp_filter")


def probe(*prefix: str) -> dict[str, dict[str, object]]:
    done = subprocess.run([*prefix, str(PROBE)], stdout=subprocess.PIPE, check=True)
    features: dict[str, dict[str, object]] = json.loads(done.stdout)["features"]
    return features


def test_what_sandboxes_need_is_usable(needs_root: None) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    features = probe()
    assert all(features[name]["usable"] for name in NEEDED), features
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not list(Path("/sys/fs/cgroup").glob("**/venus-probe"))


def test_without_rights_it_says_so(needs_root: None) -> None:
    features = probe("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    for name in ("idmapped_mounts", "userfaultfd_device"):
        assert features[name]["usable"] is False
        assert features[name]["error"] in (
            "Operation not permitted",
            "Permission denied",
        )
