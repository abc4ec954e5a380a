"""``python -m venusrl.demo``: see --help."""

import os

# Before torch is loaded: OpenMP reads it then. By default its threads spin for milliseconds after
# each operation, on cores that sandboxes need; a generation then takes several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from venusrl.demo.command import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
