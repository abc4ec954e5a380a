"""Removes what a daemon of a test run has left that was killed, and its run after it.

    reaper NAME STATE_DIR SETTINGS

A daemon that still runs was told to stop, and takes all with it. Of one that had been killed,
sandboxes live on: another is started with the same settings, which adopts them, and is stopped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.daemon import DaemonProcess

ATTEMPTS = 10


def main() -> None:
    name, state_dir, settings = sys.argv[1:]
    daemon = DaemonProcess(name, Path(state_dir), json.loads(settings))
    daemon.is_reaped = False
    for _ in range(ATTEMPTS):
        if not daemon.run_dir.exists():
            break
        try:
            daemon.start()
        except AssertionError:
            continue  # it is refused while another one stops
        break
    daemon.remove()


if __name__ == "__main__":
    main()
