"""Boots the guest and runs tests in it: python -m tests.qemu [PYTEST ARGUMENTS].

Without arguments `guest/units.py`, which tries the units, and what of `tests/kernel` is about
groups. All is emulated, so it runs wherever QEMU does. VENUS_CACHE holds what is kept of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.qemu.images import project_disk, system

TIMEOUT_S = 2400
# QEMU 7.2 emulates the 16 byte compare and exchange wrongly on some hosts; the kernel dies of it.
MACHINE = ("-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", "2", "-m", "3072")
KERNEL_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 panic=-1 mitigations=off quiet systemd.show_status=0 "
    "systemd.wants=venus-guest.service systemd.mask=getty.target"
)
# Without what the fixtures of other tests import, which takes its time in the guest.
TESTS = (
    "--confcutdir=tests/qemu",
    "-p",
    "no:hypothesispytest",
    "-v",
    "--tb=short",
    "tests/qemu/guest/units.py",
)


def command(place: Path, project: Path, console: Path) -> list[str]:
    """QEMU with the console in a file and what the tests say on its standard output."""
    disks = ((place / "system.ext4", "snapshot=on"), (project, "readonly=on"))
    return [
        "qemu-system-x86_64", *MACHINE, "-nodefaults", "-no-reboot", "-display", "none",
        "-kernel", str(place / "vmlinuz"), "-initrd", str(place / "initrd.img"),
        "-append", KERNEL_ARGUMENTS, "-serial", f"file:{console}", "-serial", "stdio",
        *(word for disk, how in disks
          for word in ("-drive", f"file={disk},format=raw,if=virtio,{how}")),
    ]  # fmt: skip


def run(arguments: list[str]) -> int:
    """The exit status of pytest in the guest."""
    cache = Path(os.environ.get("VENUS_CACHE", "/var/cache/venus"))
    place = system(cache)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        console = Path(scratch) / "console.log"
        project = project_disk(cache, Path(os.environ["VENUS_BASE_TAR"]), Path(scratch), arguments)
        guest = subprocess.Popen(
            command(place, project, console), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        timer = threading.Timer(TIMEOUT_S, guest.kill)
        timer.start()
        try:
            assert guest.stdout is not None
            verdict = None
            for line in guest.stdout:
                text = line.decode(errors="replace").rstrip()
                print(text, flush=True)
                verdict = re.fullmatch(r"guest: exit status (\d+)", text) or verdict
        finally:
            timer.cancel()
            guest.kill()
            guest.wait()
        if verdict is None:
            print(f"the guest ended without a verdict:\n{console.read_text()[-4000:]}")
            return 1
        return int(verdict[1])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:] or list(TESTS)))
