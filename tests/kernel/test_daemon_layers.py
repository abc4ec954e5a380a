"""Chains of forks: layers are merged when they are too many, and files stay what they were."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, Template
from sandboxd.errors import VenusError
from sandboxd.storage.layers import to_merge
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import layers_of, records_of

MAX_LAYERS = 4
DEPTH = 3 * MAX_LAYERS


@pytest.fixture(scope="module", params=["plain", "btrfs"])
def shallow(
    request: pytest.FixtureRequest, base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    process = DaemonProcess(
        f"venus-y{os.getpid()}",
        tmp_path_factory.mktemp("venus"),
        {"storage_backend": request.param, "max_layers": str(MAX_LAYERS)},
    )
    with serving(process, base_image_tar):
        yield process


def change(sandbox: Sandbox, depth: int) -> None:
    """Something new, something gone, something renamed, and something that a process has open."""
    sandbox.commands.run(
        f"echo {depth} > /root/at-{depth}; rm -f /root/at-{depth - 2};"
        f"mv /root/dir-{depth - 1} /root/dir-{depth} || mkdir -p /root/dir-0/in;"
        f"echo {depth} >> /root/dir-{depth}/in/log; echo {depth} >> /root/held; rm -r /srv;"
        f"mkdir /srv; touch /srv/{depth}; ln -f /root/at-{depth} /root/link"
    )


def expected(depth: int) -> list[str]:
    return [
        *sorted(f"/root/at-{each}" for each in range(max(0, depth - 1), depth + 1)),
        f"/root/dir-{depth}",
        f"/srv/{depth}",
        *map(str, range(depth + 1)),
        str(depth),
    ]


def look(sandbox: Sandbox, depth: int) -> list[str]:
    return sandbox.commands.run(
        f"ls -d /root/at-* /root/dir-* /srv/*; cat /root/dir-{depth}/in/log /root/link"
    ).stdout.split()


def test_a_chain_may_be_as_long_as_one_likes(shallow: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(Sandbox.create(socket=shallow.socket))
        current.commands.run("sleep 1000 >> /root/held &")
        for depth in range(DEPTH):
            change(current, depth)
            assert look(current, depth) == expected(depth), depth
            template = current.snapshot()
            assert 1 <= template.info.layers <= MAX_LAYERS, depth
            [fork] = template.fork()
            stack.enter_context(fork)
            assert look(fork, depth) == expected(depth), depth
            if depth % 3:
                template.remove()
            current = fork
        held = current.commands.run("cat /root/held; stat -Lc %i /root/held; cat /proc/[0-9]*/comm")
        assert held.stdout.split()[:DEPTH] == list(map(str, range(DEPTH)))
        assert "sleep" in held.stdout
        # What shares a number would be taken for one file by cp, tar and find.
        numbers = current.commands.run(
            "find / -xdev -type f -links 1 -printf '%i\\n' | sort | uniq -d"
        ).stdout
        assert numbers == ""
        for left in Template.list(socket=shallow.socket):
            Template.get(left.id, socket=shallow.socket).remove()
    eventually(lambda: layers_of(shallow) == [], "layers are left")
    assert records_of(shallow) == []


def test_a_merge_that_fails_leaves_all_as_it_was(shallow: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(Sandbox.create(socket=shallow.socket))
        for _ in range(MAX_LAYERS):
            [current] = current.fork()
            stack.enter_context(current)
        layers = layers_of(shallow)
        # An opaque mark that no kernel of ours makes.
        top = shallow.state_dir / "storage" / "uppers" / current.sandbox_id / "upper"
        current.commands.run("mkdir /root/odd")
        os.setxattr(top / "root" / "odd", "trusted.overlay.opaque", b"x")
        with pytest.raises(VenusError, match="could not be merged") as caught:
            current.snapshot()
        assert "opaque" in str(caught.value)
        assert layers_of(shallow) == layers and records_of(shallow) == []
        os.removexattr(top / "root" / "odd", "trusted.overlay.opaque")
        template = current.snapshot()
        assert template.info.layers <= MAX_LAYERS
        template.remove()
    eventually(lambda: layers_of(shallow) == [], "layers are left")


def test_how_many_are_merged() -> None:
    assert [to_merge(count, 4) for count in (1, 4, 5, 9)] == [0, 0, 3, 7]
    assert [to_merge(count, 1) for count in (1, 2)] == [0, 2]
    for most in range(1, 20):
        count = 1
        for _ in range(100):
            merged = to_merge(count, most)
            assert merged != 1
            count = count - merged + (merged > 0)
            assert count <= most
            count += 1
