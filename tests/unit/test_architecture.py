"""The arrows of the design: who may import whom, read from the source.

venusrl → sandboxd.client → (socket) → sandboxd → native. The pure cores import no I/O.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED_OF_SANDBOXD = ("sandboxd.client", "sandboxd.protocol", "sandboxd.errors")

# Pure: decisions without I/O. Prefixes of module files → roots that they may not import.
IO_MODULES = frozenset(
    {
        "asyncio", "fastapi", "http", "httpcore", "multiprocessing", "os", "pathlib", "requests",
        "sandboxd", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uvicorn",
        "vllm",
    }
)  # fmt: skip
PURE = {
    "venusrl/schedule": IO_MODULES | {"torch", "random"},
    "venusrl/train/grpo.py": IO_MODULES,
    "sandboxd/output_ring.py": IO_MODULES,
    "venusrl/engine/rollouts.py": IO_MODULES | {"torch", "random"},
    "venusrl/engine/residency.py": IO_MODULES | {"torch", "random"},
    "venusrl/engine/host_order.py": IO_MODULES | {"torch", "random"},
    "sandboxd/lifecycle.py": IO_MODULES - {"sandboxd", "time"},
    "sandboxd/e2b/connect.py": IO_MODULES,
    "sandboxd/metrics/histogram.py": IO_MODULES,
    "sandboxd/metrics/exposition.py": IO_MODULES - {"sandboxd"},
    "sandboxd/metrics/instruments.py": IO_MODULES - {"sandboxd"},
    "sandboxd/metrics/families.py": IO_MODULES - {"sandboxd"},
    "sandboxd/e2b/multipart.py": IO_MODULES - {"sandboxd"},
    "sandboxd/isolation/plan.py": IO_MODULES - {"sandboxd", "os", "pathlib"},
    "sandboxd/client/_call.py": IO_MODULES - {"sandboxd"},
    "sandboxd/client/_calls.py": IO_MODULES - {"sandboxd"},
    "sandboxd/client/_command_calls.py": IO_MODULES - {"sandboxd"},
    "sandboxd/client/_image_calls.py": IO_MODULES - {"sandboxd"},
    "sandboxd/client/_template_calls.py": IO_MODULES - {"sandboxd"},
    "sandboxd/client/_exec.py": IO_MODULES - {"sandboxd"},
}


def imports(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Absolute names of all modules that a file imports, wherever in it."""
    package = path.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from package import module` names the module only in its second half.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(name: str, prefixes: tuple[str, ...] | frozenset[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def sources(below: str) -> list[Path]:
    place = ROOT / below
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", named(sources("venusrl")))
def test_venusrl_reaches_sandboxd_through_its_client_alone(path: str) -> None:
    wrong = [
        name
        for name in imports(ROOT / path)
        if is_within(name, ("sandboxd",)) and not is_within(name, ALLOWED_OF_SANDBOXD)
    ]
    assert not wrong, f"{path} imports {wrong}"


@pytest.mark.parametrize("path", named(sources("sandboxd")))
def test_sandboxd_knows_nothing_of_venusrl(path: str) -> None:
    wrong = [n for n in imports(ROOT / path) if is_within(n, ("venusrl", "torch", "vllm"))]
    assert not wrong, f"{path} imports {wrong}"


FRAMEWORKS = ("inspect_ai", "minisweagent", "swerex")


@pytest.mark.parametrize("path", named(sources("sandboxd/providers")))
def test_providers_stand_on_the_client_alone(path: str) -> None:
    allowed = (*ALLOWED_OF_SANDBOXD, "sandboxd.providers")
    wrong = [
        name
        for name in imports(ROOT / path)
        if is_within(name, ("sandboxd",)) and not is_within(name, allowed)
    ]
    assert not wrong, f"{path} imports {wrong}"


@pytest.mark.parametrize("path", named(sources("sandboxd") + sources("venusrl")))
def test_only_its_provider_needs_a_framework(path: str) -> None:
    wrong = [name for name in imports(ROOT / path) if is_within(name, FRAMEWORKS)]
    assert not wrong or path.startswith("sandboxd/providers/"), f"{path} imports {wrong}"


@pytest.mark.parametrize("below", [name for name in PURE if (ROOT / name).exists()])
def test_pure_code_imports_no_io(below: str) -> None:
    for path in sources(below):
        wrong = [name for name in imports(path) if is_within(name, frozenset(PURE[below]))]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("name", ["sandboxd/protocol.py", "sandboxd/errors.py"])
def test_what_both_sides_share_needs_the_standard_library_only(name: str) -> None:
    wrong = [n for n in imports(ROOT / name) if n.split(".")[0] not in sys.stdlib_module_names]
    assert not wrong, f"{name} imports {wrong}"


def test_importing_the_client_loads_no_server_and_no_torch() -> None:
    heavy = (
        "torch",
        "vllm",
        "fastapi",
        "pydantic",
        "uvicorn",
        "google.protobuf",
        "sandboxd._native",
        "venusrl",
    )
    code = (
        "import sys, sandboxd.client, sandboxd.cli\n"
        f"sys.exit(', '.join(name for name in {heavy!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_rules_see_every_kind_of_import(tmp_path: Path) -> None:
    package = tmp_path / "venusrl" / "episode"
    package.mkdir(parents=True)
    file = package / "x.py"
    file.write_text(
        "import sandboxd.service\nfrom sandboxd import api\n"
        "def f():\n    from sandboxd.api import server\n    from ..tasks import task\n"
    )
    assert list(imports(file, tmp_path)) == [
        "sandboxd.service",
        "sandboxd.api",
        "sandboxd.api.server",
        "venusrl.tasks.task",
    ]
    assert is_within("sandboxd.client.types", ALLOWED_OF_SANDBOXD)
    assert not is_within("sandboxd.clientele", ALLOWED_OF_SANDBOXD)
