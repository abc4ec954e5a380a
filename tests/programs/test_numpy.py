"""CPython with numpy and threads, forked in the middle of a computation that must end exactly."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.client import Sandbox
from tests.support.conversation import Conversation

# Three threads compute; what they have at a step depends on nothing but the words that they were
# told for steps before it. They wait at a gate for the next word. A big array and a mapped file
# take part.
PROGRAM = """
import hashlib, sys, threading
import numpy as np

THREADS, SIZE, LAST = 3, 96, int(sys.argv[1])
first_gate = gate = int(sys.argv[2])
word, condition = "", threading.Condition()
ballast = np.random.default_rng(7).random(4 << 20)  # 32 MiB
disk = np.memmap("/root/disk", np.float64, "w+", shape=(THREADS, LAST))

def work(number):
    state = np.random.default_rng(number).random((SIZE, SIZE))
    for step in range(LAST):
        with condition:
            while step >= gate:
                condition.wait()
            salt = word
        if step >= first_gate:
            state[0] += float(len(salt)) + number
            ballast[number::THREADS] += np.float64(sum(salt.encode()))
        state = np.sin(state @ state.T / SIZE) + np.fft.fft2(state).real / SIZE
        disk[number, step] = state.sum()
        if number == 0 and step % 10 == 0:
            print("step", step, flush=True)
    digest[number] = hashlib.sha256(state.tobytes()).hexdigest()

digest = [""] * THREADS
threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for line in sys.stdin:
    with condition:
        gate, word = int(line.split()[0]), line.split()[1]
        condition.notify_all()
    if gate >= LAST:
        break
for thread in threads:
    thread.join()
disk.flush()
total = hashlib.sha256(ballast.tobytes() + disk.tobytes() + "".join(digest).encode()).hexdigest()
print("end", total, flush=True)
"""
END = r"end ([0-9a-f]{64})$"


def start(sandbox: Sandbox, last: int, gate: int) -> Conversation:
    return Conversation.start(sandbox, ["python3", "-c", PROGRAM, str(last), str(gate)])


def undisturbed(sandbox: Sandbox, last: int, gate: int, word: str) -> tuple[str, str]:
    """What comes out when nobody takes a snapshot, and what is then in the file."""
    end = start(sandbox, last, gate).ask(f"{last} {word}", END)[1]
    return end, file_digest(sandbox)


def file_digest(sandbox: Sandbox) -> str:
    return sandbox.commands.run("sha256sum /root/disk").stdout.split()[0]


def check(
    sandboxes: Sequence[Sandbox], exec_id: int, original: Conversation, last: int, gate: int
) -> None:
    """Each goes on with a word of its own, all at once, and ends as if it had been alone."""
    talks = [original, *(Conversation.inherited(each, exec_id) for each in sandboxes[1:])]
    words = [chr(ord("a") + number) * (number + 1) for number in range(len(talks))]
    for talk, word in zip(talks, words, strict=True):
        talk.send(f"{last} {word}\n")
    ends = [talk.expect(END)[1] for talk in talks]
    assert len(set(ends)) == len(ends)
    found = [(end, file_digest(each)) for end, each in zip(ends, sandboxes, strict=True)]
    # Only now: it writes to the same file.
    assert found == [undisturbed(sandboxes[0], last, gate, word) for word in words]


def test_forks_at_several_moments_of_a_computation(programs_sandbox: Sandbox) -> None:
    talk = start(programs_sandbox, 400, 300)
    forks: list[Sandbox] = []
    try:
        for step in (20, 60, 100, 140):
            talk.expect(f"step {step}$")
            forks += programs_sandbox.fork()
        for fork in forks:
            # It was on its way, and goes on by itself.
            Conversation.inherited(fork, talk.exec_id).expect(r"step 290$")
        check([programs_sandbox, *forks], talk.exec_id, talk, 400, 300)
    finally:
        for fork in forks:
            fork.kill()


def test_forks_of_forks_of_a_running_computation(programs_sandbox: Sandbox) -> None:
    talk = start(programs_sandbox, 400, 300)
    talk.expect("step 20$")
    [child] = programs_sandbox.fork()
    with child:
        Conversation.inherited(child, talk.exec_id).expect(r"step 1\d\d$")
        [grandchild] = child.fork()
        with grandchild:
            check([programs_sandbox, child, grandchild], talk.exec_id, talk, 400, 300)
