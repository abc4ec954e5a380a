"""Sources of the configuration and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.config import Config, load_config
from sandboxd.errors import InvalidRequest


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('max_sandboxes = 5\nmax_pids = 6\nstorage_backend = "plain"\n')
    config = load_config(
        file=file,
        environment={"VENUS_MAX_PIDS": "7", "VENUS_RUN_DIR": "/run/a", "VENUS_SOCKET": "ignored"},
        overrides={"run_dir": "/run/b", "state_dir": None},
    )
    assert (config.max_sandboxes, config.max_pids) == (5, 7)
    assert config.run_dir == Path("/run/b")
    assert config.state_dir == Config().state_dir
    assert config.storage_backend == "plain"
    assert config.socket_path == Path("/run/b/sandboxd.sock")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("max_sandbox = 5", "max_sandbox"),
        ("max_sandboxes = 'many'", "max_sandboxes"),
        ("max_sandboxes = 0", "max_sandboxes"),
        ("storage_backend = 'zfs'", "storage_backend"),
        ("run_dir = 'relative'", "run_dir"),
        ("cgroup_parent = 'a/../b'", "cgroup_parent"),
        ("cgroup_parent = '/a'", "cgroup_parent"),
        ("on_stop = 'forget'", "on_stop"),
        (f"run_dir = '/{'x' * 80}'", "run_dir"),
        ("= broken", "c.toml"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(content)
    with pytest.raises(InvalidRequest) as raised:
        load_config(file=file, environment={})
    assert named in raised.value.object


def test_a_missing_file_is_an_error_only_if_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        load_config(file=tmp_path / "absent.toml", environment={})
