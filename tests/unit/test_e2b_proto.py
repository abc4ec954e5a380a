"""The generated modules are those of the `.proto` files beside them."""

from __future__ import annotations

from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
PROTO = Path("sandboxd/e2b/proto")


@pytest.mark.parametrize("name", ["process", "filesystem"])
def test_the_generated_modules_are_current(name: str, tmp_path: Path) -> None:
    library = Path(grpc_tools.__file__).parent / "_proto"
    options = [f"-I{ROOT}", f"-I{library}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", *options, str(ROOT / PROTO / f"{name}.proto")]) == 0
    for suffix in ("_pb2.py", "_pb2.pyi"):
        file = PROTO / f"{name}{suffix}"
        assert (tmp_path / file).read_text() == (ROOT / file).read_text(), f"{file} is not current"
