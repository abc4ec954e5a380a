"""A template outlives the process that made it: another forks it, and goes on from its forks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import _native
from sandboxd.keeper import Found, PoolKeeper
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, wait_for
from tests.fidelity.test_separation import PROGRAM, ask
from tests.support.init_harness import RawSandbox
from tests.support.keeper import end_keeper

# A daemon that captures, has the keeper hold what it captured, and is killed.
DYING_DAEMON = """
import json, os, signal, sys
from pathlib import Path
from sandboxd import _native
from sandboxd.keeper import PoolKeeper
from tests.fidelity.harness import freeze
pid, upper, frozen, directory = sys.argv[1:]
template = _native.capture(int(pid), [], lambda: freeze(Path(upper), Path(frozen)))
keeper = PoolKeeper(Path(directory))
keeper.open()
keeper.hold("first", template.save(digests=True), template.descriptors())
print(json.dumps([template.counts, template.coordinator]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("k") / "keeper"
    yield path
    end_keeper(path)


def captured_elsewhere(
    original: RawSandbox, frozen: Path, directory: Path
) -> tuple[dict[str, int], int]:
    """Counts and coordinator of a template whose maker is dead."""
    done = subprocess.run(
        [sys.executable, "-c", DYING_DAEMON]
        + [str(each) for each in (original.pid, original.upper, frozen, directory)],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    counts, coordinator = json.loads(done.stdout)
    return counts, coordinator


def loaded(keeper: PoolKeeper, name: str) -> _native.Template:
    with keeper.take(name) as taken:
        return _native.load_template(taken.header, taken.descriptors, verify_digests=True)


def test_forked_by_another_process(rootfs: Path, workspace: Path, directory: Path) -> None:
    with isolated(rootfs, workspace / "a", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        original.start("python3", "-c", PROGRAM)
        assert wait_for(original, READY) == "ready"
        counts, coordinator = captured_elsewhere(original, workspace / "l1", directory)
        keeper = PoolKeeper(directory)
        assert keeper.open() is Found.RUNNING
        first = loaded(keeper, "first")
        assert (first.counts, first.coordinator) == (counts, coordinator)
        files = keeper.state().files
        with isolated(rootfs, workspace / "b", [workspace / "l1"]) as child:
            assert restore(child, first).exit_code == 0
            number, _, checksum = ask(child, "child")
            assert number == "1"
            # The lineage is known by the files' identities, which have not changed.
            second = _native.capture(
                child.pid, [], lambda: freeze(child.upper, workspace / "l2"), parent=first
            )
        assert second.counts["inherited_bytes"] > 8 << 20
        assert second.counts["extent_bytes"] < 2 << 20
        keeper.hold("second", second.save(digests=True), second.descriptors())
        own = keeper.state().files - files
        assert own < len(second.descriptors()) + 1, "what both have is held once"
        expected = second.counts
        del first, second
        keeper.release("first")
        with isolated(rootfs, workspace / "c", [workspace / "l2", workspace / "l1"]) as grandchild:
            again = loaded(keeper, "second")
            assert again.counts == expected
            assert restore(grandchild, again).exit_code == 0
            assert ask(grandchild, "grand") == ["2", b"child   ".hex(), checksum]
        keeper.end()


def test_failures_of_a_loaded_template_are_described(
    rootfs: Path, workspace: Path, directory: Path
) -> None:
    """A fork without the layer that an open file of the program lies in."""
    with isolated(rootfs, workspace / "a", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        original.start("python3", "-c", f"kept = open('/var/tmp/kept', 'w')\n{PROGRAM}")
        assert wait_for(original, READY) == "ready"
        captured_elsewhere(original, workspace / "l1", directory)
        keeper = PoolKeeper(directory)
        keeper.open()
        template = loaded(keeper, "first")
        with isolated(rootfs, workspace / "b", []) as bare:
            failed = restore(bare, template)
            assert failed.exit_code != 0
            assert "/var/tmp/kept" in failed.failure
        keeper.end()
