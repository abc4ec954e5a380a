"""The disks of the guest: a Debian with systemd, made once, and the project as it is now."""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = Path(__file__).parent / "guest" / "venus-guest.service"
MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
# Its kernel is a newer one's: one that takes layers of overlays by descriptor.
BACKPORTS = "trixie-backports"
SOURCES = (f"deb {MIRROR} {SUITE} main", f"deb {MIRROR} {BACKPORTS} main")
# The package of the whole kernel cannot be configured on this suite; its parts can.
KERNEL = f"""
modules=$(apt-cache depends linux-modules-cloud-amd64 | grep -o 'linux-modules-[0-9].*')
version=${{modules#linux-modules-}}
apt-get -q -y --no-install-recommends -t {BACKPORTS} install \\
    linux-binary-$version $modules
cp /lib/modules/$version/config /boot/config-$version
cp /lib/modules/$version/vmlinuz /vmlinuz
mkinitramfs -o /initrd.img $version
"""
PACKAGES = (
    "systemd-sysv", "udev", "kmod", "procps", "python3", "btrfs-progs", "initramfs-tools",
)  # fmt: skip
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
# Of that suite; what is built for another one does not run there.
GUEST_PYTHON = (3, 11)
SYSTEM_MIB, PROJECT_MIB = 4096, 1024
TEST_PACKAGES = ("pytest", "pytest-timeout", "hypothesis")
# Of the image of the sandboxes: what takes long to unpack and that no test there runs.
NOT_IN_IMAGE = (
    "usr/share/", "var/", "usr/sbin/", "usr/lib/apt/", "usr/lib/dpkg/", "usr/lib/systemd/",
    "usr/lib/x86_64-linux-gnu/gconv/", "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/security/", "usr/lib/python3/",
)  # fmt: skip
PARTS_OF_PROJECT = ("sandboxd", "tests", "pyproject.toml")

SYSTEM_COMMAND = (
    "mmdebstrap", "--variant=minbase", "--format=tar", f"--include={','.join(PACKAGES)}",
    "--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
    f"--customize-hook=chroot \"$1\" sh -ec {shlex.quote(KERNEL)}",
    # By its text: what is made depends on that, not on where this checkout lies.
    f'--customize-hook=printf %s {shlex.quote(UNIT.read_text())} '
    '>"$1/etc/systemd/system/venus-guest.service"',
    '--customize-hook=mkdir "$1/opt/venus"',
    '--customize-hook=echo "/dev/vdb /opt/venus ext4 ro 0 0" >"$1/etc/fstab"',
    '--customize-hook=echo venus-guest >"$1/etc/hostname"',
)  # fmt: skip


def system(cache: Path) -> Path:
    """A directory with `vmlinuz`, `initrd.img` and `system.ext4`."""

    def make(place: Path) -> None:
        # By way of a tar: what mmdebstrap mounts must not be in what is removed here.
        tree, tar = place / "tree", place / "system.tar"
        _run([*SYSTEM_COMMAND, SUITE, str(tar), *SOURCES])
        tree.mkdir()
        _run(["tar", "-x", "-p", "--numeric-owner", "-f", str(tar), "-C", str(tree)])
        tar.unlink()
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(tree / name, place / name)
        _filesystem(tree, place / "system.ext4", SYSTEM_MIB)
        shutil.rmtree(tree)

    inputs = [*SYSTEM_COMMAND, *SOURCES, str(SYSTEM_MIB)]
    return _kept(cache, "guest-system", inputs, make)


def packages(cache: Path) -> Path:
    """The Python packages of the daemon and of its tests, in one directory."""
    if sys.version_info[:2] != GUEST_PYTHON:
        wanted = ".".join(map(str, GUEST_PYTHON))
        raise SystemExit(f"the guest has Python {wanted}; this is {sys.version.split()[0]}")
    daemon_lock, dev_lock = (ROOT / "requirements" / f"{name}.lock" for name in ("daemon", "dev"))

    def make(place: Path) -> None:
        install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        wanted = [*daemon_lock.read_text().splitlines(), *TEST_PACKAGES]
        wanted = [line for line in wanted if not line.startswith("#")]
        _run([*install, "--target", str(place), "-c", str(dev_lock), *wanted])

    inputs = [daemon_lock.read_text(), dev_lock.read_text(), *TEST_PACKAGES]
    return _kept(cache, "guest-packages", inputs, make)


def project_disk(cache: Path, base_tar: Path, scratch: Path, arguments: Sequence[str]) -> Path:
    """A disk that becomes the guest's /opt/venus, in `scratch`; `arguments` are pytest's."""
    tree = scratch / "tree"
    shutil.copytree(packages(cache), tree)
    for name in PARTS_OF_PROJECT:
        # With what Python has compiled: that takes its time in the guest.
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tree / name)
    _slim(base_tar, tree / "base.tar")
    (tree / "arguments").write_text(shlex.join(arguments))
    disk = scratch / "project.ext4"
    _filesystem(tree, disk, PROJECT_MIB)
    shutil.rmtree(tree)
    return disk


def _slim(tar: Path, target: Path) -> None:
    """An image that the guest can import in seconds."""
    with tarfile.open(tar) as whole, tarfile.open(target, "w") as slim:
        for member in whole:
            if member.name.removeprefix("./").startswith(NOT_IN_IMAGE):
                continue
            slim.addfile(member, whole.extractfile(member) if member.isreg() else None)


def _kept(cache: Path, name: str, inputs: Sequence[str], make: Callable[[Path], None]) -> Path:
    """What was made of `inputs`, by one process at a time; of other inputs nothing stays."""
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    place, part = cache / f"{name}-{digest}", cache / f"{name}-part"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            for other in cache.glob(f"{name}-*"):
                shutil.rmtree(other)
            part.mkdir()
            print(f"making {name}, once", file=sys.stderr, flush=True)
            make(part)
            part.rename(place)
    return place


def _filesystem(tree: Path, disk: Path, size_mib: int) -> None:
    _run(["mkfs.ext4", "-q", "-F", "-d", str(tree), str(disk), f"{size_mib}M"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')[-4000:]}")
