"""What the daemon writes down about its templates: one JSON file each, replaced as a whole.

The pages of a template are in memory files, which end with their last holder; a record whose pages
cannot be had back is removed at the next start, and with it the layers that nobody else stands on.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sandboxd.errors import InternalError
from sandboxd.launch_request import Limits
from sandboxd.state_files import replace_file
from sandboxd.templates.recipe import RecipeCommand
from sandboxd.templates.template import CapturedCommand, TemplateRecord

RECORD_VERSION = 1
_SUFFIX = ".json"


def encode_record(record: TemplateRecord) -> bytes:
    """The content of a record's file."""
    return json.dumps({"version": RECORD_VERSION, **dataclasses.asdict(record)}).encode()


def decode_record(content: bytes) -> TemplateRecord:
    """Inverse of `encode_record`; `ValueError` for anything else, also another version."""
    table: Any = json.loads(content)
    if not isinstance(table, dict) or table.pop("version", None) != RECORD_VERSION:
        raise ValueError(f"not a template's record of version {RECORD_VERSION}")
    try:
        table["layers"] = tuple(table["layers"])
        table["limits"] = Limits(**table["limits"])
        table["commands"] = tuple(CapturedCommand(**each) for each in table["commands"])
        if table["on_fork"] is not None:
            argv = tuple(table["on_fork"].pop("argv"))
            table["on_fork"] = RecipeCommand(argv, **table["on_fork"])
        return TemplateRecord(**table)
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


class TemplateRecords:
    """The files under one directory. Blocking; each call is a few short system calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> None:
        """Make the directory."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, record: TemplateRecord) -> None:
        """Create the file of a record."""
        path = self._path(record.template_id)
        temporary = path.with_suffix(".tmp")
        try:
            replace_file(path, temporary, encode_record(record))
        except OSError as error:
            raise InternalError(
                "the template's record cannot be written",
                operation="remember template",
                object=record.template_id,
                cause=str(error),
            ) from error

    def forget(self, template_id: str) -> None:
        """Remove the file, finished or not; no error if there is none."""
        self._path(template_id).unlink(missing_ok=True)
        self._path(template_id).with_suffix(".tmp").unlink(missing_ok=True)

    def read_all(self) -> dict[str, TemplateRecord | None]:
        """Every id that has a file; None where that is not whole."""
        found: dict[str, TemplateRecord | None] = {}
        for path in self._directory.iterdir():
            try:
                record = decode_record(path.read_bytes()) if path.suffix == _SUFFIX else None
            except (OSError, ValueError):
                record = None
            known = record is not None and record.template_id == path.stem
            found[path.stem] = record if known else None
        return found

    def _path(self, template_id: str) -> Path:
        return self._directory / f"{template_id}{_SUFFIX}"
