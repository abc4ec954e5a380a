"""Templates in which `python3` costs a fork instead of a start.

An interpreter that has imported what programs need is left running in the template. In each sandbox
of it, `python3` (by PATH) runs its program in a fork of that interpreter: modules are there, and
their memory stays shared with all other sandboxes of the template.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxd.errors import InvalidRequest
from sandboxd.protocol import DEFAULT_PATH

DIRECTORY = "/opt/venus"
_PROGRAM = f"{DIRECTORY}/warm_python_program.py"
_BINARY = Path(__file__).parents[1] / "_bin" / "warm-python"
_CHECK = "import socket; socket.socket(socket.AF_UNIX).connect('\\0venus-warm-python')"


def warm_python(
    recipe: Mapping[str, Any],
    imports: Sequence[str] = (),
    *,
    reseed: bool = True,
    python: str = "/usr/bin/python3",
    timeout_s: float = 120.0,
) -> dict[str, Any]:
    """The recipe, with a warm interpreter that has imported `imports`.

    `python` is the interpreter in the image. With `reseed`, the generators of `random`, numpy and
    torch (where they are imported) are seeded anew for each program, as in a new process; without,
    every program of every fork draws the same numbers. `timeout_s` is for the imports.

    A program has the streams, arguments, environment, directory and umask of who started it, and
    ends with it. Options of python3 (but for -c and -m), an interactive prompt, variables
    PYTHON… (but for PYTHONPATH, PYTHONUNBUFFERED and PYTHONDONTWRITEBYTECODE), and other users than
    the one that the template was built as, get `python3` as it is. Limits (`ulimit`) and hash seed
    are those of the warm interpreter.
    """
    for name in imports:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidRequest(
                "this is no name of a module",
                operation="build template",
                object=name,
                cause="warm_python imports modules",
            )
    try:
        binary = _BINARY.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            "the program warm-python is not installed here",
            operation="build template",
            object=str(_BINARY),
            cause=str(error),
        ) from error
    program = Path(__file__).with_name("warm_python_program.py").read_bytes()
    files = [
        _file(f"{DIRECTORY}/bin/python3", binary, 0o755),
        _file(_PROGRAM, program, 0o644),
        *recipe.get("files", ()),
    ]
    environment = dict(recipe.get("env") or {})
    path = environment.get("PATH", DEFAULT_PATH)
    environment["PATH"] = f"{DIRECTORY}/bin:{path}"
    warm = {
        "command": [python, _PROGRAM, "reseed" if reseed else "keep", *imports],
        "ready": [python, "-c", _CHECK],
        "timeout_s": timeout_s,
    }
    return {
        **recipe,
        "files": files,
        "env": environment,
        "warm": [warm, *recipe.get("warm", ())],
    }


def _file(path: str, content: bytes, mode: int) -> dict[str, Any]:
    return {"path": path, "content": base64.b64encode(content).decode(), "mode": mode}
