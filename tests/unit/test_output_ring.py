"""What is kept of a stream, and what all streams together may keep."""

from __future__ import annotations

import random

import pytest

from sandboxd.output_ring import FLOOR_BYTES, KeptOutput, OutputRing


def bounds(ring_bytes: int, total_bytes: int) -> KeptOutput:
    return KeptOutput(ring_bytes, total_bytes, readers_per_sandbox=1, readers=1)


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_gets_every_byte_or_is_told_of_it(seed: int) -> None:
    rng = random.Random(seed)
    ring = OutputRing(100)
    written, position, read = b"", 0, b""
    for _ in range(200):
        piece = rng.randbytes(rng.randrange(60))
        ring.add(piece)
        written += piece
        assert ring.end == len(written)
        assert ring.content() == written[-100:]
        if rng.random() < 0.5:
            lost, data = ring.read(position, rng.randrange(1, 80))
            read += b"?" * lost + data
            position += lost + len(data)
    lost, data = ring.read(position, 1000)
    read += b"?" * lost + data
    assert len(read) == len(written)
    assert all(got in (ord("?"), want) for got, want in zip(read, written, strict=True))


def test_a_reader_at_the_end_loses_nothing() -> None:
    ring = OutputRing(10)
    ring.add(b"0123456789abc")
    assert ring.begin == 3
    assert ring.read(13, 5) == (0, b"")
    assert ring.read(3, 4) == (0, b"3456")
    assert ring.read(0, 4) == (3, b"3456")


def test_rings_share_what_there_is_and_each_has_its_floor() -> None:
    shared = bounds(4 * FLOOR_BYTES, 5 * FLOOR_BYTES)
    rings = [OutputRing(shared.ring_bytes, shared) for _ in range(3)]
    for ring in rings:
        ring.add(bytes(10 * FLOOR_BYTES))
    assert [len(ring.content()) // FLOOR_BYTES for ring in rings] == [4, 1, 1]
    assert shared.used_bytes == 6 * FLOOR_BYTES
    rings[0].clear()
    rings[2].add(bytes(10 * FLOOR_BYTES))
    assert len(rings[2].content()) == 4 * FLOOR_BYTES
    for ring in rings:
        ring.clear()
    assert shared.used_bytes == 0
