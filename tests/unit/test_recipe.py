"""Recipes that give the same template have one digest, and no others do."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.bounds import CreateOptions
from sandboxd.templates.recipe import Recipe, RecipeCommand, RecipeFile, WarmCommand
from sandboxd.templates.records import decode_record, encode_record
from tests.unit.test_templates import RECORD

pytestmark = pytest.mark.unit

OPTIONS = CreateOptions(image="base", env={"A": "1", "B": "2"})
RECIPE = Recipe(
    options=OPTIONS,
    files=(RecipeFile("/a", b"content"),),
    setup=(RecipeCommand(("/bin/sh", "-c", "x"), 60.0),),
    warm=(WarmCommand(("w",), ("check",), 60.0),),
    on_fork=RecipeCommand(("f",), 5.0),
)


def digest(recipe: Recipe, origin: str = "base sha 1") -> str:
    return recipe.digest(origin)


@pytest.mark.parametrize(
    "same",
    [
        dataclasses.replace(RECIPE),
        dataclasses.replace(RECIPE, labels={"x": "y"}),
        dataclasses.replace(
            RECIPE, options=dataclasses.replace(OPTIONS, env={"B": "2", "A": "1"}, ttl_s=9.0)
        ),
        dataclasses.replace(RECIPE, options=dataclasses.replace(OPTIONS, hostname="h")),
    ],
)
def test_what_does_not_change_the_result_does_not_count(same: Recipe) -> None:
    assert digest(same) == digest(RECIPE)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RECIPE, files=(RecipeFile("/a", b"other"),)),
        dataclasses.replace(RECIPE, files=(RecipeFile("/a", b"content", 0o755),)),
        dataclasses.replace(RECIPE, setup=()),
        dataclasses.replace(RECIPE, setup=RECIPE.setup * 2),
        dataclasses.replace(RECIPE, warm=(WarmCommand(("w",), None, 60.0),)),
        dataclasses.replace(RECIPE, on_fork=None),
        dataclasses.replace(RECIPE, options=dataclasses.replace(OPTIONS, env={"A": "1"})),
        dataclasses.replace(RECIPE, options=dataclasses.replace(OPTIONS, memory_bytes=1 << 30)),
        dataclasses.replace(RECIPE, options=dataclasses.replace(OPTIONS, cwd="/srv")),
    ],
)
def test_whatever_changes_the_result_counts(other: Recipe) -> None:
    assert digest(other) != digest(RECIPE)


def test_what_it_stands_on_counts() -> None:
    assert digest(RECIPE, "base sha 2") != digest(RECIPE)


def test_a_record_keeps_where_it_came_from() -> None:
    record = dataclasses.replace(RECORD, recipe=digest(RECIPE), on_fork=RECIPE.on_fork)
    assert decode_record(encode_record(record)) == record
