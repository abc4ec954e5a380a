"""Fixtures of several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.images import ImageStore
from sandboxd.storage import PlainStore
from tests.support.image_store import Settings, store_of


@pytest.fixture
def volumes(tmp_path: Path) -> PlainStore:
    volumes = PlainStore(Settings(tmp_path))
    volumes.open()
    return volumes


@pytest.fixture
def images(volumes: PlainStore, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    # Flushing the machine's whole filesystem takes seconds, and no test pulls the plug.
    monkeypatch.setattr("sandboxd.images.store.sync_filesystem", lambda path: None)
    images = store_of(volumes)
    images.open()
    return images
