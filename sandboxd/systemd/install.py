"""Installs the units: `python -m sandboxd.systemd.install`.

They start the daemon with the Python and from the directory that install them. systemd is not told:
`systemd-sysusers`, `systemctl daemon-reload` and `enable` are the operator's (docs/operations.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

UNITS = Path(__file__).parent / "units"
PACKAGES = Path(__file__).parents[2]
UNIT_DIRECTORY = Path("/etc/systemd/system")
SYSUSERS_DIRECTORY = Path("/etc/sysusers.d")


def install(root: Path, python: Path, packages: Path) -> list[Path]:
    """Write all below `root`; the files that were written."""
    written = []
    for unit in sorted(UNITS.iterdir()):
        directory = SYSUSERS_DIRECTORY if unit.suffix == ".conf" else UNIT_DIRECTORY
        target = root / directory.relative_to("/") / unit.name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = unit.read_text().replace("@PYTHON@", str(python))
        target.write_text(text.replace("@PACKAGES@", str(packages)))
        written.append(target)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Install the systemd units of sandboxd.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="below which (default: /)")
    options = parser.parse_args()
    # Not resolved: the Python of a virtual environment is a link out of it.
    for path in install(options.root, Path(sys.executable), PACKAGES):
        print(path)


if __name__ == "__main__":
    main()
