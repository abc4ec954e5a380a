"""Builds the shell scripts of tasks.

Setup scripts fork little (builtins write the files); verify scripts are lists of checks, each of
which ends the script with 1 when it does not hold. ``cmp`` reads from a pipe and stops at the
first difference, so a verifier's memory is bounded whatever a policy left behind, and a check for
a regular file comes first, so it never waits on a FIFO or follows a link.
"""

import shlex
from collections.abc import Iterable, Mapping

from venusrl.tasks.task import Facts


def write(path: str, text: str) -> str:
    """Write ``text`` to ``path`` without a fork."""
    return f"printf %s {shlex.quote(text)} > {path}"


def setup(facts: Facts, directories: Iterable[str], files: Mapping[str, str], *more: str) -> str:
    """Make the task's directories, the clutter beside them and the files, then run ``more``."""
    lines = [
        "set -e",
        f"mkdir -p {' '.join([*directories, facts['clutter']])}",
        *(write(path, text) for path, text in files.items()),
        *more,
    ]
    return "\n".join(lines) + "\n"


def verify(*checks: str) -> str:
    return "\n".join([*(f"{check} || exit 1" for check in checks), "exit 0"]) + "\n"


def holds(path: str, text: str) -> str:
    """``path`` is a regular file with exactly this text."""
    return f"{is_file(path)} && printf %s {shlex.quote(text)} | cmp -s - {path}"


def prints(command: str, text: str) -> str:
    """``command`` writes exactly this text to its standard output."""
    return f'[ "$({{ {command}; }} 2>/dev/null; echo .)" = {shlex.quote(text + ".")} ]'


def is_file(path: str) -> str:
    return f"[ -f {path} ] && [ ! -L {path} ]"


def has_mode(path: str, mode: str) -> str:
    return f'[ "$(stat -c %a {path} 2>/dev/null)" = {mode} ]'


def lists(directory: str, names: Iterable[str]) -> str:
    """``directory`` holds exactly these names, hidden ones included."""
    visible = sorted(name for name in names if not name.startswith("."))
    hidden = sorted(name for name in names if name.startswith("."))
    # A pattern that matches nothing stays as it is.
    expected = " ".join([*(visible or ["*"]), *(hidden or [".[!.]*"])])
    return f"""[ "$(cd {directory} 2>/dev/null && echo * .[!.]*)" = {shlex.quote(expected)} ]"""
