"""Tables in shared memory, with a second process that writes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from venusrl.engine.shared_table import DECISION, REPORT, SharedTable, TableError

pytestmark = pytest.mark.unit

ROWS = 5000
WRITER = f"""
import sys
from pathlib import Path
import numpy as np
from venusrl.engine.shared_table import DECISION, SharedTable
table = SharedTable.create(Path(sys.argv[1]), DECISION, {ROWS})
rows = np.zeros({ROWS}, DECISION)
print(flush=True)
for number in range(1, 2001):
    rows["trajectory"] = rows["rank"] = number
    table.publish(rows)
sys.stdin.readline()
for number in range(3):
    rows["rank"] = 7 + number
    # As if it died while it filled the copy.
    table._copies[(table.version + 1) & 1] = rows
"""


def test_a_reader_sees_whole_versions_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        writer.stdout.readline()
        table = SharedTable.attach(path, DECISION)
        known = 0
        while known < 2000:
            found = table.read(known)
            if found is None:
                continue
            version, rows = found
            assert version > known
            known = version
            assert np.unique(rows["rank"]).tolist() == [version]
            assert np.unique(rows["trajectory"]).tolist() == [version]
        writer.stdin.write(b"\n")
        writer.stdin.close()
        assert writer.wait() == 0
    found = table.read(0)
    assert found is not None and found[0] == 2000
    assert np.unique(found[1]["rank"]).tolist() == [2000]
    assert table.read(2000) is None


def test_what_is_no_such_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    creator = SharedTable.create(path, DECISION, 4)
    with pytest.raises(FileExistsError, match="create table: File exists"):
        SharedTable.create(path, DECISION, 4)
    with pytest.raises(TableError, match="16-byte rows"):
        SharedTable.attach(path, REPORT)
    path.write_bytes(b"too short")
    with pytest.raises(TableError, match="9 bytes"):
        SharedTable.attach(path, DECISION)
    with pytest.raises(ValueError, match="0 rows"):
        SharedTable.create(tmp_path / "other", DECISION, 0)
    del creator
    with pytest.raises(FileExistsError):
        SharedTable.create(path, DECISION, 4)
    assert path.read_bytes() == b"too short", "a file of somebody else's is gone"
    with pytest.raises(FileNotFoundError, match="create table: No such file"):
        SharedTable.create(tmp_path / "no" / "table", DECISION, 4)


def test_a_table_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(FileExistsError):
            SharedTable.create(path, DECISION, 4)
        writer.kill()
    old = SharedTable.attach(path, DECISION)
    table = SharedTable.create(path, DECISION, 4)
    assert (table.rows, table.version, old.rows) == (4, 0, ROWS)
    table.remove()
    assert not path.exists()


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"create table: No space left on device: .*/table"):
        SharedTable.create(tmp_path / "table", DECISION, 4)
    assert not list(tmp_path.iterdir())
