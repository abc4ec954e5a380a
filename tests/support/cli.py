"""venus-sandbox as a process."""

from __future__ import annotations

import subprocess
import sys


class Cli:
    """Runs venus-sandbox as a process of its own."""

    def __init__(self, socket: str) -> None:
        self.argv = [sys.executable, "-m", "sandboxd.cli", "--socket", socket]

    def __call__(
        self, *arguments: str, stdin: bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*self.argv, *arguments], input=stdin, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        return done

    def text(self, *arguments: str) -> str:
        return self(*arguments).stdout.decode().strip()

    def start(self, *arguments: str, stdin: bytes) -> subprocess.Popen[bytes]:
        """It runs on; all of its input is there."""
        process = subprocess.Popen(
            [*self.argv, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        return process
