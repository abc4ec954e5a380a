"""The closed table of errors."""

from __future__ import annotations

import errno

import pytest

from sandboxd import errors
from sandboxd.errors import (
    ERROR_CLASSES,
    InternalError,
    errno_of,
    error_from_errno,
    error_from_json,
)


@pytest.mark.parametrize("code", ERROR_CLASSES)
def test_an_error_crosses_the_wire_unchanged(code: str) -> None:
    sent = ERROR_CLASSES[code]("m", operation="o", object="x", cause="c")
    received = error_from_json(sent.to_json())
    assert type(received) is type(sent)
    assert str(received) == str(sent) == "o x: m: c"


def test_the_table_holds_every_class_of_the_module() -> None:
    classes = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.VenusError)
    }
    assert classes - {errors.VenusError} == set(ERROR_CLASSES.values())


@pytest.mark.parametrize(
    "body", [None, [], "text", {}, {"error": "x"}, {"error": {"code": "os.system"}}]
)
def test_whatever_else_comes_is_an_internal_error(body: object) -> None:
    assert type(error_from_json(body)) is InternalError


def test_errno_names_the_cause() -> None:
    error = error_from_errno(errno.ENOENT, "it failed", operation="read file", object="/x")
    assert isinstance(error, errors.NotFound)
    assert str(error) == "read file /x: it failed: ENOENT: No such file or directory"
    assert type(error_from_errno(errno.EIO, "m", operation="o", object="x")) is InternalError


def test_the_number_is_found_again() -> None:
    error = error_from_errno(errno.EISDIR, "E1: it failed", operation="o", object="ENOENT: x")
    assert errno_of(error) == errno.EISDIR
    started = errors.ExecFailed("no", cause=f"step exec: {errors.errno_text(errno.EACCES)}")
    assert errno_of(started) == errno.EACCES
    assert errno_of(errors.NotFound("no such sandbox")) is None
    assert errno_of(InternalError("no", cause="ENOTHING: no such number")) is None
