"""What is written down of a template, who holds layers, and when commands may start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd import start_gate
from sandboxd.bounds import CreateOptions
from sandboxd.errors import Conflict, NotFound
from sandboxd.launch_request import Limits
from sandboxd.start_gate import StartGate
from sandboxd.storage import Collection, PlainStore
from sandboxd.storage.layers import LayerStore
from sandboxd.templates.records import TemplateRecords, decode_record, encode_record
from sandboxd.templates.template import CapturedCommand, TemplateRecord

pytestmark = pytest.mark.unit

RECORD = TemplateRecord(
    template_id="tp-1",
    tenant_uid=1000,
    image="base",
    layers=("layer-2", "layer-1"),
    limits=Limits(1 << 30, 100, 0.5, None),
    env={"A": "1", "B": "1"},
    cwd="/srv",
    user="nobody",
    sandbox_id="sb-1",
    parent="tp-0",
    created_at=1.5,
    labels={"x": "y"},
    counts={"processes": 3},
    commands=(CapturedCommand(7, 12, None, 0, 1), CapturedCommand(8, 0, 2)),
    exec_generation=2,
    last_exec=9,
)


def test_a_record_comes_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        encode_record(RECORD)[:-2],
        encode_record(RECORD).replace(b'"version": 1', b'"version": 2'),
        encode_record(RECORD).replace(b'"cwd"', b'"cwd2"'),
        encode_record(RECORD).replace(b'"exec_id"', b'"id"'),
    ],
)
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_record(content)


def test_records_tell_whole_files_from_cut_ones(tmp_path: Path) -> None:
    records = TemplateRecords(tmp_path / "templates")
    records.open()
    records.write(RECORD)
    (tmp_path / "templates/tp-2.tmp").write_bytes(b"half")
    (tmp_path / "templates/tp-3.json").write_bytes(encode_record(RECORD))
    assert records.read_all() == {"tp-1": RECORD, "tp-2": None, "tp-3": None}
    records.forget("tp-1")
    records.forget("tp-1")
    assert "tp-1" not in records.read_all()
    (tmp_path / "templates/tp-4.tmp").write_bytes(encode_record(RECORD))
    assert records.read_all() == {"tp-2": None, "tp-3": None, "tp-4": None}
    for name in ("tp-2", "tp-3", "tp-4"):
        records.forget(name)
    assert records.read_all() == {}
    assert list((tmp_path / "templates").iterdir()) == []


def test_a_fork_is_as_its_template_unless_told_otherwise() -> None:
    same = RECORD.options(CreateOptions(image=""))
    assert (same.image, same.memory_bytes, same.pids) == ("base", 1 << 30, 100)
    assert (same.cpu_cores, same.disk_bytes, same.cwd, same.user) == (0.5, None, "/srv", "nobody")
    assert same.env == RECORD.env and same.labels == {}
    other = RECORD.options(
        CreateOptions(image="", memory_bytes=1, env={"B": "2"}, user="root", labels={"n": "1"})
    )
    assert (other.memory_bytes, other.pids, other.user) == (1, 100, "root")
    assert other.env == {"A": "1", "B": "2"} and other.labels == {"n": "1"}


class _Config:
    storage_size_bytes = 1 << 30
    storage_backend = "plain"

    def __init__(self, place: Path) -> None:
        self.state_dir = place
        self.storage_dir = place / "storage"


@pytest.fixture
def volumes(tmp_path: Path) -> PlainStore:
    store = PlainStore(_Config(tmp_path))  # type: ignore[arg-type]
    store.open()
    upper = store.create(Collection.UPPERS, "sb-1", None) / "upper"
    upper.mkdir()
    (upper / "file").write_text("content")
    return store


def test_a_layer_stays_as_long_as_somebody_holds_it(volumes: PlainStore) -> None:
    layers = LayerStore(volumes)
    layers.open()
    name = layers.freeze("sb-1", "tp-1")
    (volumes.path(Collection.UPPERS, "sb-1") / "upper/file").write_text("changed")
    [root] = layers.hold("sb-2", [name])
    assert (root / "file").read_text() == "content"
    layers.release("tp-1")
    layers.release("tp-1")
    assert root.exists()
    layers.release("sb-2")
    assert volumes.names(Collection.LAYERS) == set()
    with pytest.raises(NotFound):
        layers.hold("sb-3", [name])


def test_all_layers_are_held_or_none(volumes: PlainStore) -> None:
    layers = LayerStore(volumes)
    layers.open()
    name = layers.freeze("sb-1", "tp-1")
    with pytest.raises(NotFound):
        layers.hold("sb-2", [name, "layer-of-nobody"])
    layers.release("tp-1")
    assert volumes.names(Collection.LAYERS) == set()


def test_after_a_start_what_nobody_took_again_is_removed(volumes: PlainStore) -> None:
    earlier = LayerStore(volumes)
    earlier.open()
    kept, lost = (earlier.freeze("sb-1", holder) for holder in ("sb-2", "tp-1"))
    layers = LayerStore(volumes)
    layers.open()
    layers.hold("sb-2", [kept])
    assert layers.remove_unheld() == [lost]
    assert volumes.names(Collection.LAYERS) == {kept}


def test_nothing_starts_while_the_gate_is_closed() -> None:
    async def scenario() -> list[str]:
        gate, order = StartGate(), []

        async def start(name: str) -> None:
            await gate.enter()
            order.append(name)
            gate.leave()

        async def capture(name: str) -> None:
            async with gate.closed(lambda: False, "sb-1"):
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await gate.enter()
        first = asyncio.ensure_future(capture("first"))
        await asyncio.sleep(0)
        tasks = [asyncio.ensure_future(each) for each in (capture("second"), start("late"))]
        await asyncio.sleep(0)
        assert order == [], "it does not wait for a start that is under way"
        gate.leave()
        await asyncio.gather(first, *tasks)
        assert not gate.is_closed
        return order

    order = asyncio.run(scenario())
    assert order[:2] == ["first begins", "first ends"]
    assert order.index("second ends") == order.index("second begins") + 1
    assert sorted(order)[2] == "late"


def test_a_capture_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        gate = StartGate()
        with pytest.raises(Conflict, match="being transferred"):
            async with gate.closed(lambda: True, "sb-1"):
                raise AssertionError("it began")
        await asyncio.wait_for(gate.enter(), 1)

    monkeypatch.setattr(start_gate, "QUIET_TIMEOUT_S", 0.01)
    asyncio.run(scenario())
