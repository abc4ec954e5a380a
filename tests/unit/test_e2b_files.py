"""Packed uploads, also hostile ones."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.e2b.files import UNPACKED_PIECE_BYTES, unpacked
from sandboxd.errors import InvalidRequest


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def pieces(packed: bytes, size: int = 1000) -> list[bytes]:
    async def run() -> list[bytes]:
        return [piece async for piece in unpacked(pieces_of(packed, size))]

    return asyncio.run(run())


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.integers(1, 40))
def test_any_content_comes_back_also_in_members(contents: list[bytes], size: int) -> None:
    packed = b"".join(gzip.compress(each) for each in contents)
    assert b"".join(pieces(packed, size)) == b"".join(contents)


@pytest.mark.parametrize("length", [UNPACKED_PIECE_BYTES, UNPACKED_PIECE_BYTES + 1, 50 << 20])
def test_what_is_packed_well_comes_in_pieces(length: int) -> None:
    found = pieces(gzip.compress(bytes(length)), 1 << 20)
    assert sum(map(len, found)) == length
    assert max(map(len, found)) <= UNPACKED_PIECE_BYTES


def test_a_stream_that_is_cut_or_none_is_refused() -> None:
    whole = gzip.compress(b"content" * 100)
    for end in range(len(whole)):
        with pytest.raises(InvalidRequest, match="cut"):
            pieces(whole[:end])
    for wrong in (b"content", whole + b"garbage", whole[:-5] + bytes(5)):
        with pytest.raises(InvalidRequest, match="no gzip"):
            pieces(wrong)
