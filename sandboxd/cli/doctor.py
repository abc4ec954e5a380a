"""doctor: can this machine run sandboxes, and does the daemon answer?"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from sandboxd.client import Daemon, VenusError

_PROBE = Path(__file__).parent.parent / "_bin" / "kernel-probe"


class Verdict(StrEnum):
    """`MISSING` breaks something; `OPTIONAL` costs a feature that the note names."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    note: str


_MARKS = {Verdict.OK: "ok      ", Verdict.OPTIONAL: "optional", Verdict.MISSING: "MISSING "}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(socket: str, as_json: bool) -> None:
    """Check the machine and the daemon; exit code 1 when something needed is missing."""
    findings = [check() for check in _HOST_CHECKS] + [_daemon(socket)]
    probe = kernel_features()
    if as_json:
        found = [dataclasses.asdict(finding) for finding in findings]
        click.echo(json.dumps({"findings": found, "kernel_features": probe}))
    else:
        for finding in findings:
            click.echo(f"{_MARKS[finding.verdict]}  {finding.name}: {finding.note}")
        if probe is None:
            click.echo("          kernel features: kernel-probe is not built or does not run here")
        else:
            click.echo("          kernel features: " + json.dumps(probe))
    if any(finding.verdict is Verdict.MISSING for finding in findings):
        raise click.exceptions.Exit(1)


def kernel_features() -> object:
    """What kernel-probe prints, or None where it cannot run."""
    try:
        done = subprocess.run([_PROBE], capture_output=True, timeout=20, check=True)
        features: object = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return features


def _platform() -> Finding:
    here = f"{platform.system()} {platform.release()} on {platform.machine()}"
    fits = platform.system() == "Linux" and platform.machine() == "x86_64"
    return Finding("platform", Verdict.OK if fits else Verdict.MISSING, here)


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("rights", Verdict.OK, "root")
    return Finding(
        "rights",
        Verdict.OPTIONAL,
        f"uid {os.geteuid()}: the daemon needs root; its clients need group venus",
    )


def _filesystem(name: str, needed: bool, without: str) -> Finding:
    try:
        kernel = Path("/proc/filesystems").read_text().split()
    except OSError as error:
        return Finding(name, Verdict.MISSING, f"/proc/filesystems: {error.strerror}")
    if name in kernel:
        return Finding(name, Verdict.OK, "known to the kernel")
    return Finding(name, Verdict.MISSING if needed else Verdict.OPTIONAL, without)


def _overlay() -> Finding:
    return _filesystem("overlay", True, "unknown to the kernel; try modprobe overlay")


def _btrfs() -> Finding:
    return _filesystem("btrfs", False, "unknown to the kernel: no disk limits; plain directories")


def _namespaces() -> Finding:
    wanted = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
    absent = [name for name in wanted if not Path("/proc/self/ns", name).exists()]
    if absent:
        return Finding("namespaces", Verdict.MISSING, f"the kernel lacks {', '.join(absent)}")
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return Finding("namespaces", Verdict.MISSING, f"{limit} is 0")
    return Finding("namespaces", Verdict.OK, ", ".join(wanted))


def _cgroups() -> Finding:
    # Of the daemon, and not what a client needs.
    from sandboxd.cgroups import choose_backend, mounted_hierarchies

    found = mounted_hierarchies()
    try:
        choose_backend(found, "venus")
    except VenusError as error:
        return Finding("cgroups", Verdict.MISSING, error.cause)
    if not found.v1:
        return Finding("cgroups", Verdict.OK, f"version 2 at {found.unified}")
    beside = f", version 2 beside them at {found.unified}" if found.unified else ""
    return Finding("cgroups", Verdict.OK, f"version 1 controllers{beside}")


def _programs() -> Finding:
    wanted = {
        "mkfs.btrfs": "the storage file",
        "mmdebstrap": "image build-base",
        "skopeo": "image pull",
    }
    absent = [f"{name} ({use})" for name, use in wanted.items() if shutil.which(name) is None]
    if absent:
        return Finding("programs", Verdict.OPTIONAL, f"not installed: {', '.join(absent)}")
    return Finding("programs", Verdict.OK, ", ".join(wanted))


def _native() -> Finding:
    try:
        import sandboxd._native  # noqa: F401
    except ImportError as error:
        return Finding("native module", Verdict.OPTIONAL, f"the daemon cannot run here: {error}")
    return Finding("native module", Verdict.OK, "built")


def _daemon(socket: str) -> Finding:
    try:
        with Daemon(socket) as daemon:
            info = daemon.info()
    except VenusError as error:
        return Finding("daemon", Verdict.MISSING, str(error))
    storage = f", storage {info.storage_backend}" if info.storage_backend else ""
    note = f"version {info.version} at {socket}, {info.sandboxes} sandboxes{storage}"
    return Finding("daemon", Verdict.OK, note)


_HOST_CHECKS: tuple[Callable[[], Finding], ...] = (
    _platform,
    _root,
    _namespaces,
    _cgroups,
    _overlay,
    _btrfs,
    _programs,
    _native,
)
