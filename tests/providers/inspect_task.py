"""A task as somebody writes it who has Inspect: `inspect eval inspect_task.py`."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox

SAMPLES = 12


@solver
def work():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("answer", state.input_text)
        done = await sandbox().exec(["sh", "-c", "cat question answer; id -u; cat made-by-setup"])
        state.store.set("seen", done.stdout)
        return state

    return solve


@solver
def sleep():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().exec(["sleep", "1000"])
        return state

    return solve


@scorer(metrics=[accuracy()])
def seen():
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="C" if state.store.get("seen") == target.text else "I")

    return score


def _samples() -> list[Sample]:
    return [
        Sample(
            id=f"sample {number}",
            input=f"answer {number}",
            files={"question": f"question {number}\n"},
            setup="#!/bin/sh\necho ready > made-by-setup\n",
            target=f"question {number}\nanswer {number}0\nready\n",
        )
        for number in range(SAMPLES)
    ]


@task
def quick():
    return Task(dataset=_samples(), solver=work(), scorer=seen(), sandbox="venus")


@task
def endless():
    return Task(dataset=_samples(), solver=sleep(), scorer=seen(), sandbox=("venus", "base"))
