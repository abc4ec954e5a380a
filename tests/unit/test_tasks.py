"""Tasks as data: seeds, splits, lengths, demonstrations. Nothing runs but setup scripts."""

import random
import re
import string
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from venusrl.tasks import (
    FAMILIES,
    FIXED_FRAGMENTS,
    FLAW_MIX,
    MAX_COMMAND_CHARACTERS,
    SPLITS,
    Demonstration,
    Task,
    demonstrate,
    generate,
    warmup_corpus,
)
from venusrl.tasks.families import grant

TWO_TURNS = [name for name, family in FAMILIES.items() if family.max_turns == 2]
Tree = tuple[object, ...]


def _every_demonstration(task: Task) -> Iterable[Demonstration]:
    family = FAMILIES[task.family]
    yield Demonstration(family.solve(task.facts), None)
    for kind, steps in family.flaws(task.facts).items():
        yield Demonstration(steps, kind)


def _whole(fragment: str) -> str:
    before = r"(?<!\w)" if fragment[0].isalnum() else ""
    after = r"(?!\w)" if fragment[-1].isalnum() else ""
    return before + re.escape(fragment) + after


ANY_FRAGMENT = "|".join(_whole(each) for each in sorted(FIXED_FRAGMENTS, key=len, reverse=True))


def _without_fragments(text: str) -> str:
    return re.sub(ANY_FRAGMENT, " ", text)


def test_ten_families_or_more_and_three_with_two_turns() -> None:
    assert len(FAMILIES) >= 10
    assert len(TWO_TURNS) >= 3


def test_the_same_seed_makes_the_same_tasks() -> None:
    assert generate("train", 5, 40) == generate("train", 5, 40)
    assert [d for _, d in warmup_corpus(5, 60)] == [d for _, d in warmup_corpus(5, 60)]


def test_another_seed_or_split_makes_other_tasks() -> None:
    prompts = [
        {task.prompt for task in generate(split, seed, 60)} for split in SPLITS for seed in (1, 2)
    ]
    assert sum(map(len, prompts)) == len(set().union(*prompts)) == 6 * 60


def test_families_take_turns_and_unknown_ones_are_refused() -> None:
    assert [task.family for task in generate("train", 0, 4, ["move", "edit"])] == [
        *("move", "edit", "move", "edit")
    ]
    with pytest.raises(ValueError, match="unknown families juggle"):
        generate("train", 0, 4, ["move", "juggle"])
    with pytest.raises(ValueError, match="no families"):
        generate("train", 0, 4, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_short(family: str) -> None:
    for split in SPLITS:
        for task in generate(split, 3, 60, [family]):
            assert len(task.prompt) <= 100
            for demonstration in _every_demonstration(task):
                assert 1 <= len(demonstration.steps) <= task.max_turns
                for step in demonstration.steps:
                    assert len(step.command) <= MAX_COMMAND_CHARACTERS
                    assert len(step.observation) <= 100


@pytest.mark.parametrize("family", FAMILIES)
def test_no_name_belongs_to_two_splits(family: str) -> None:
    fixed = set(re.findall(r"[a-z]+", " ".join(FIXED_FRAGMENTS)))
    # Keys of tables, and answers computed from contents, are not names.
    left_out = {"order", "question", "answer"}
    names = {}
    for split in SPLITS:
        text = " ".join(
            value
            for task in generate(split, 11, 150, [family])
            for key, value in task.facts.items()
            if key not in left_out
        )
        names[split] = set(re.findall(r"[a-z]{3,}", text)) - fixed
        assert names[split]
    assert not names["held_out"] & names["warmup"]
    assert not names["held_out"] & names["train"]
    assert not names["warmup"] & names["train"]


def _tree(directory: Path) -> Tree:
    """The shape of a directory tree: what it holds, without names."""
    return tuple(
        sorted(
            (
                _tree(entry) if entry.is_dir() and not entry.is_symlink() else ("file",)
                for entry in directory.iterdir()
            ),
            key=repr,
        )
    )


def _set_up(task: Task, directory: Path) -> None:
    # Without the background processes, which would outlive the test, and the wait for them.
    script = "".join(
        line
        for line in task.setup.splitlines(keepends=True)
        if not line.rstrip().endswith("&") and not line.startswith("started ")
    )
    directory.mkdir()
    subprocess.run(["/bin/sh", "-c", script], cwd=directory, check=True)


def test_no_directory_shape_and_no_content_belongs_to_two_splits(tmp_path: Path) -> None:
    shapes: dict[str, set[Tree]] = {split: set() for split in SPLITS}
    contents: dict[str, set[bytes]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for task in generate(split, 17, 5 * len(FAMILIES)):
            directory = tmp_path / task.task_id
            _set_up(task, directory)
            shapes[split].add(_tree(directory))
            texts = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
            # Programs are copies of the image's own.
            contents[split] |= {text for text in texts if text and not text.startswith(b"\x7fELF")}
    for one, two in (("warmup", "held_out"), ("train", "held_out"), ("warmup", "train")):
        assert shapes[one] and not shapes[one] & shapes[two]
        assert contents[one] and not contents[one] & contents[two]


@pytest.mark.parametrize("family", FAMILIES)
def test_fragments_cover_all_fixed_text(family: str) -> None:
    for task in generate("train", 23, 80, [family]):
        names = set(re.findall(r"[a-z]+", " ".join(task.facts.values())))
        texts = [task.prompt, *(s.command for d in _every_demonstration(task) for s in d.steps)]
        for text in texts:
            left = set(re.findall(r"[a-z]{3,}", _without_fragments(text)))
            assert left <= names, f"{text!r}: {left - names} is neither fragment nor name"


def test_no_fragment_is_a_name() -> None:
    words = {fragment for fragment in FIXED_FRAGMENTS if re.fullmatch(r"[a-z]{3,5}", fragment)}
    for task in generate("held_out", 2, 60 * len(FAMILIES)):
        assert not words & set(re.findall(r"[a-z]+", task.facts["d"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_flaws_come_in_two_kinds_or_more_and_all_have_a_weight(family: str) -> None:
    mix = FLAW_MIX[family]
    seen = set()
    for task in generate("warmup", 29, 120, [family]):
        kinds = FAMILIES[family].flaws(task.facts)
        assert len(kinds) >= 2
        assert FAMILIES[family].solve(task.facts) not in kinds.values()
        seen |= set(kinds)
    assert seen == set(mix.weights)
    assert 0.25 <= 1 - mix.share <= 0.75


def test_in_three_families_or_more_one_mistake_outweighs_the_right_form() -> None:
    outweighed = [
        name
        for name, mix in FLAW_MIX.items()
        if mix.share * max(mix.weights.values()) / sum(mix.weights.values())
        > 1.25 * (1 - mix.share)
    ]
    assert 3 <= len(outweighed) <= 0.6 * len(FAMILIES)


def test_the_corpus_is_flawed_as_often_as_the_mix_says() -> None:
    flawed, total = Counter[str](), Counter[str]()
    for task, demonstration in warmup_corpus(1, 400 * len(FAMILIES)):
        assert task.split == "warmup"
        total[task.family] += 1
        flawed[task.family] += demonstration.flaw is not None
    for family, mix in FLAW_MIX.items():
        assert abs(flawed[family] / total[family] - mix.share) < 0.1


def test_demonstrate_follows_its_arguments() -> None:
    for task in generate("train", 31, 2 * len(FAMILIES)):
        assert demonstrate(task, random.Random(1), flawed=False).flaw is None
        wrong = demonstrate(task, random.Random(1), flawed=True)
        assert wrong.flaw in FLAW_MIX[task.family].weights
        assert wrong == demonstrate(task, random.Random(1), flawed=True)


# --- what a two-turn prompt gives away -------------------------------------------------------


@pytest.mark.parametrize("family", TWO_TURNS)
def test_the_prompt_says_nothing_about_the_note(family: str) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse(FAMILIES[family].prompt)}
    # A directory, the note's own name and where to put an answer, all drawn apart from it.
    assert fields - {None} <= {"d", "n", "o"}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", TWO_TURNS)
def test_sixteen_or_more_answers_are_equally_likely(family: str, split: str) -> None:
    tasks = generate(split, 37, 1500, [family])  # type: ignore[arg-type]
    answers = Counter(
        task.facts.get("order") or task.facts.get("question") or task.facts["m"] for task in tasks
    )
    assert len(answers) >= 16
    expected = len(tasks) / len(answers)
    # Far beyond the 99.9 % quantile of chi-square for at most 21 degrees of freedom.
    assert sum((n - expected) ** 2 / expected for n in answers.values()) < 60


def test_modes_are_disjoint_but_share_their_digits() -> None:
    pools = [set(grant.modes(split)) for split in SPLITS]
    assert sum(map(len, pools)) == len(set().union(*pools))
    for pool in pools:
        for place, words in enumerate(grant.CLASSES):
            assert {mode[place] for mode in pool} == set(words)
