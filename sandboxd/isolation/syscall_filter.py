"""Compiler of a system call policy into a seccomp filter (classic BPF), for x86-64 only.

A policy gives every system call number a rule: conditions on arguments, tried in order, and a
verdict where none holds. The filter finds the rule by binary search, so its cost is logarithmic in
the size of the policy; rules that do not look at arguments are cached by the kernel as a bitmap and
cost nothing at all.

Calls of another ABI (i386 through `int 0x80`, x32) and numbers beyond the last known one get ENOSYS
before anything else is looked at.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

AUDIT_ARCH_X86_64 = 0xC000003E
X32_SYSCALL_BIT = 0x40000000
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
WORD = 0xFFFFFFFF
"""Mask for arguments of which the kernel reads the low 32 bits: comparing all 64 of such a one
would let `value | 1 << 32` pass as something else (CVE-2019-7303)."""

BPF_LD_ABS, BPF_AND, BPF_RET = 0x20, 0x54, 0x06
BPF_JA, BPF_JEQ, BPF_JGT, BPF_JGE = 0x05, 0x15, 0x25, 0x35
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")


@dataclass(frozen=True)
class Verdict:
    """Return value of the filter."""

    action: int


ALLOW = Verdict(SECCOMP_RET_ALLOW)


def refuse(error: int) -> Verdict:
    """Answer the call with an errno."""
    return Verdict(SECCOMP_RET_ERRNO | error)


@dataclass(frozen=True)
class Argument:
    """Holds when `argument[index] & mask == value`."""

    index: int
    value: int
    mask: int = WORD


@dataclass(frozen=True)
class Case:
    """`verdict`, if all conditions hold."""

    conditions: tuple[Argument, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Rule:
    """The first case that holds decides, else `otherwise`."""

    otherwise: Verdict
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True)
class _Instruction:
    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


def compile_policy(rules: Mapping[int, Rule], default: Rule, last_known: int) -> bytes:
    """The filter as an array of `struct sock_filter`."""
    too_new = refuse(errno.ENOSYS).action
    head = [
        _Instruction(BPF_LD_ABS, _ARCH_OFFSET),
        _Instruction(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0),
        _Instruction(BPF_RET, too_new),
        _Instruction(BPF_LD_ABS, _NR_OFFSET),
        # Covers the x32 bit too: it makes every number larger than all known ones.
        _Instruction(BPF_JGT, last_known, 0, 1),
        _Instruction(BPF_RET, too_new),
    ]
    body = _search(_segments(rules, default, last_known))
    return b"".join(
        _INSTRUCTION.pack(each.code, each.if_true, each.if_false, each.value)
        for each in head + body
    )


def _segments(rules: Mapping[int, Rule], default: Rule, last_known: int) -> list[tuple[int, Rule]]:
    """(first number, rule) of each longest run of numbers with one rule, ascending from 0."""
    segments: list[tuple[int, Rule]] = []
    for number in range(last_known + 1):
        rule = rules.get(number, default)
        if not segments or segments[-1][1] != rule:
            segments.append((number, rule))
    return segments


def _search(segments: list[tuple[int, Rule]]) -> list[_Instruction]:
    if len(segments) == 1:
        return _rule(segments[0][1])
    middle = len(segments) // 2
    left, right = _search(segments[:middle]), _search(segments[middle:])
    # Conditional jumps reach 255 instructions, JA all: the far half is reached through a JA.
    return [
        _Instruction(BPF_JGE, segments[middle][0], 0, 1),
        _Instruction(BPF_JA, len(left)),
        *left,
        *right,
    ]


def _rule(rule: Rule) -> list[_Instruction]:
    code: list[_Instruction] = []
    for case in rule.cases:
        code += _case(case)
    return [*code, _Instruction(BPF_RET, rule.otherwise.action)]


def _case(case: Case) -> list[_Instruction]:
    tests: list[tuple[int, int, int]] = []  # offset, mask, value of one 32-bit half
    for condition in case.conditions:
        if condition.value & ~condition.mask:
            raise ValueError(f"the condition can never hold: {condition}")
        for half in (0, 1):  # little endian: the low half comes first
            mask = condition.mask >> 32 * half & WORD
            if mask:
                offset = _ARGS_OFFSET + 8 * condition.index + 4 * half
                tests.append((offset, mask, condition.value >> 32 * half & WORD))
    code: list[_Instruction] = []
    for position, (offset, mask, value) in enumerate(tests):
        later = sum(2 + (test[1] != WORD) for test in tests[position + 1 :])
        code.append(_Instruction(BPF_LD_ABS, offset))
        if mask != WORD:
            code.append(_Instruction(BPF_AND, mask))
        code.append(_Instruction(BPF_JEQ, value, 0, later + 1))
    return [*code, _Instruction(BPF_RET, case.verdict.action)]
