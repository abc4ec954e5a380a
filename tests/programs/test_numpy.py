"""CPython with numpy and threads, forked in the middle of a computation that must end exactly."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.client import Sandbox
from tests.support.conversation import Conversation

# Three threads compute until they are told a word. From a step on that none of them has
# reached (or that is given) they mix it in, and end some steps later. So what comes out depends on
# that step and the word alone. A big array and a mapped file take part.
PROGRAM = """
import hashlib, sys, threading
import numpy as np

THREADS, SIZE, MORE = 3, 96, 30
lock = threading.Lock()
word, first, progress = "", None, [0] * THREADS
ballast = np.random.default_rng(7).random(4 << 20)  # 32 MiB
disk = np.memmap("/root/disk", np.float64, "w+", shape=(THREADS, 64))
digest = [""] * THREADS

def work(number):
    state = np.random.default_rng(number).random((SIZE, SIZE))
    for step in range(1 << 30):
        with lock:
            progress[number] = step
            mixed = first is not None and step >= first
            if mixed and step == first + MORE:
                break
        if mixed:
            state[0] += float(len(word)) + number
            ballast[number::THREADS] += np.float64(sum(word.encode()))
        state = np.sin(state @ state.T / SIZE) + np.fft.fft2(state).real / SIZE
        disk[number, step % 64] = state.sum()
        if number == 0 and step % 10 == 0:
            print("step", step, flush=True)
    digest[number] = hashlib.sha256(state.tobytes()).hexdigest()

threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
if len(sys.argv) > 1:
    word, first = sys.argv[1], int(sys.argv[2])
for thread in threads:
    thread.start()
if first is None:
    told = sys.stdin.readline().strip()
    with lock:
        word, first = told, max(progress) + 10
for thread in threads:
    thread.join()
disk.flush()
total = hashlib.sha256(ballast.tobytes() + disk.tobytes() + "".join(digest).encode()).hexdigest()
print("end", first, total, flush=True)
"""
END = r"end (\d+) ([0-9a-f]{64})$"


def start(sandbox: Sandbox, *arguments: str) -> Conversation:
    return Conversation.start(sandbox, ["python3", "-c", PROGRAM, *arguments])


def file_digest(sandbox: Sandbox) -> str:
    return sandbox.commands.run("sha256sum /root/disk").stdout.split()[0]


def undisturbed(sandbox: Sandbox, word: str, first: str) -> tuple[str, str]:
    """What comes out when nobody takes a snapshot, and what is then in the file."""
    digest = start(sandbox, word, first).expect(END)[2]
    return digest, file_digest(sandbox)


def check(sandboxes: Sequence[Sandbox], original: Conversation) -> None:
    """Each is on its way, hears a word of its own, and ends as if it had been alone."""
    talks = [
        original,
        *(Conversation.inherited(each, original.exec_id) for each in sandboxes[1:]),
    ]
    for talk in talks:
        talk.expect(r"step \d+$")
    words = [chr(ord("a") + number) * (number + 1) for number in range(len(talks))]
    for talk, word in zip(talks, words, strict=True):
        talk.send(f"{word}\n")
    ends = [talk.expect(END).groups() for talk in talks]
    found = [(end[1], file_digest(each)) for end, each in zip(ends, sandboxes, strict=True)]
    assert len(set(found)) == len(found)
    # Only now: it writes to the same file.
    alone = [undisturbed(sandboxes[0], word, end[0]) for word, end in zip(words, ends, strict=True)]
    assert found == alone


def test_forks_at_several_moments_of_a_computation(programs_sandbox: Sandbox) -> None:
    talk = start(programs_sandbox)
    forks: list[Sandbox] = []
    try:
        for step in (20, 40, 60, 80):
            talk.expect(f"step {step}$")
            forks += programs_sandbox.fork()
        check([programs_sandbox, *forks], talk)
    finally:
        for fork in forks:
            fork.kill()


def test_forks_of_forks_of_a_computation(programs_sandbox: Sandbox) -> None:
    talk = start(programs_sandbox)
    talk.expect("step 20$")
    [child] = programs_sandbox.fork()
    with child:
        Conversation.inherited(child, talk.exec_id).expect(r"step \d+$")
        [grandchild] = child.fork()
        with grandchild:
            check([programs_sandbox, child, grandchild], talk)
