"""A daemon that was killed, and its successor, as the SDK sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2b import CommandExitException, Sandbox

from tests.e2b.conftest import KEY, E2bDaemon, serving_e2b


def test_sandboxes_commands_and_tokens_outlive_the_daemon(
    base_image_tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def point_at(daemon: E2bDaemon) -> None:
        monkeypatch.setenv("E2B_API_URL", daemon.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", daemon.url)

    with serving_e2b(f"venus-r{os.getpid()}", tmp_path, base_image_tar) as daemon:
        point_at(daemon)
        sandbox = Sandbox.create(metadata={"a": "b"})
        handle = sandbox.commands.run("read x; echo got $x; exit 5", background=True, stdin=True)
        daemon.process.kill()
        daemon.process.start()
        point_at(daemon)
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again._envd_access_token == sandbox._envd_access_token
        assert again.get_info().metadata == {"a": "b"}
        [known] = again.commands.list()
        assert known.pid == handle.pid
        connected = again.commands.connect(handle.pid)
        connected.send_stdin("it\n")
        with pytest.raises(CommandExitException) as caught:
            connected.wait()
        assert (caught.value.stdout, caught.value.exit_code) == ("got it\n", 5)
        again.kill()


@pytest.mark.parametrize(
    ("address", "mode", "said"),
    [
        ("127.0.0.1:0", 0o644, "mode 600"),
        ("localhost", 0o600, "e2b_address"),
        ("127.0.0.1:65536", 0o600, "e2b_address"),
    ],
)
def test_a_daemon_that_cannot_serve_says_so(
    tmp_path: Path, address: str, mode: int, said: str
) -> None:
    keys_file = tmp_path / "keys"
    keys_file.write_text(f"{KEY} 1\n")
    keys_file.chmod(mode)
    own = ["--state-dir", str(tmp_path), "--run-dir", str(tmp_path)]
    e2b = ["--e2b-address", address, "--e2b-keys-file", str(keys_file)]
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", *own, *e2b], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]
