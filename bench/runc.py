"""runc as a rival: a bundle over the same root filesystem."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path


class Runc:
    """Containers of one bundle. Only where runc is installed."""

    def __init__(self, place: Path, rootfs: Path) -> None:
        self._bundle = place / "bundle"
        self._bundle.mkdir()
        self._state = place / "runc"
        subprocess.run(["runc", "spec", "--bundle", self._bundle], check=True)
        self._config = json.loads((self._bundle / "config.json").read_text())
        self._config["root"] = {"path": str(rootfs), "readonly": True}
        self._config["process"]["terminal"] = False

    @staticmethod
    def installed() -> bool:
        return shutil.which("runc") is not None

    def run_command(self, *argv: str) -> list[str]:
        """`runc run` with a name of its own each time it is executed."""
        self._write_config(argv)
        script = 'exec runc --root "$0" run --bundle "$1" "bench-$$"'
        return ["/bin/sh", "-c", script, str(self._state), str(self._bundle)]

    @contextlib.contextmanager
    def standing(self) -> Iterator[str]:
        """A container that waits for execs; yields its name."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._write_config(("/bin/sleep", "infinity"))
        runc = ["runc", "--root", str(self._state)]
        subprocess.run(
            [*runc, "run", "--detach", "--bundle", str(self._bundle), name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield name
        finally:
            subprocess.run([*runc, "delete", "--force", name], check=True)

    def exec_command(self, name: str, *argv: str) -> list[str]:
        return ["runc", "--root", str(self._state), "exec", name, *argv]

    def _write_config(self, argv: tuple[str, ...]) -> None:
        self._config["process"]["args"] = list(argv)
        (self._bundle / "config.json").write_text(json.dumps(self._config))
