"""State that cannot be rebuilt is refused when it is captured, and the program goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd import _native
from tests.fidelity.harness import isolated
from tests.fidelity.rows import GO, READY, RESULT, touch, wait_for

# What programs/refused/refused.c sets up → words of the refusal.
CASES = {
    "inotify": "this kind of file is not supported",
    "pidfd": "not supported",
    "deleted-name": "it is deleted but has other names",
    "waiting-request": "it waits to be accepted and data waits in it",
    "waiting-unix-request": "a connection waits to be accepted and data waits in it",
    "urgent-data": "urgent data waits in it",
    "packet-filter": "a packet filter is attached",
    "descriptor-in-flight": "descriptors are on their way",
    "partly-attached": "only a part of it is attached",
    "borrowed-memory": "it has not executed a program yet",
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_refused(name: str, rootfs: Path, program_layer: Path, workspace: Path) -> None:
    with isolated(rootfs, workspace / "original", [program_layer]) as sandbox:
        assert sandbox.shell("mkdir -p /var/tmp").code == 0
        sandbox.start("/t/refused", name)
        assert wait_for(sandbox, READY) == "ready"
        with pytest.raises(_native.Refused) as refused:
            _native.capture(sandbox.pid)
        assert CASES[name] in str(refused.value)
        assert refused.value.process and refused.value.object and refused.value.reason
        touch(sandbox, GO)
        assert wait_for(sandbox, RESULT) == "ok"
