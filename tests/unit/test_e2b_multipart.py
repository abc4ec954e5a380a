"""Uploads in parts, also hostile ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.e2b import multipart
from sandboxd.e2b.multipart import MultipartDecoder, PartEvent
from sandboxd.errors import InvalidRequest

KIND = "multipart/form-data; boundary=B"


def form(*parts: tuple[str, bytes]) -> bytes:
    heads = [
        f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in parts
    ]
    return b"".join(heads) + b"--B--\r\n"


def decoded(
    body: bytes, size: int, kind: str = KIND
) -> tuple[list[tuple[str | None, bytes]], bool]:
    decoder = MultipartDecoder(kind)
    found: list[tuple[str | None, bytes]] = []
    for at in range(0, len(body), size):
        for part in decoder.feed(body[at : at + size]):
            if part.event is PartEvent.BEGIN:
                assert part.field == "file"
                found.append((part.file_name, b""))
            elif part.event is PartEvent.DATA:
                found[-1] = (found[-1][0], found[-1][1] + part.data)
    return found, decoder.complete


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(min_value=1, max_value=50))
def test_parts_in_pieces_of_any_size(contents: list[bytes], size: int) -> None:
    parts = [(f"/dir/ü {n}", content) for n, content in enumerate(contents)]
    assert decoded(form(*parts), size) == (parts, True)


def test_an_upload_that_is_cut_is_known() -> None:
    whole = form(("/f", b"content"))
    for end in range(len(whole) - 4):
        assert not decoded(whole[:end], 7)[1]


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/mixed; boundary=B",
        "multipart/form-data; boundary=" + "B" * 1000,
    ],
)
def test_another_content_type_is_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest):
        MultipartDecoder(kind)


@given(st.binary(max_size=300))
def test_any_bytes_are_parts_or_refused(body: bytes) -> None:
    decoder = MultipartDecoder(KIND)
    with contextlib.suppress(InvalidRequest):
        for piece in (b"--B\r\n", body):
            list(decoder.feed(piece))


def test_headers_and_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "MAX_PARTS", 3)
    assert len(decoded(form(*[("/f", b"")] * 3), 64)[0]) == 3
    with pytest.raises(InvalidRequest, match="parts"):
        decoded(form(*[("/f", b"")] * 4), 64)
    assert decoded(form(("/" + "x" * 4000, b"")), 64)[1]
    with pytest.raises(InvalidRequest):
        decoded(form(("/" + "x" * multipart.MAX_PART_HEADERS_BYTES, b"")), 64)
