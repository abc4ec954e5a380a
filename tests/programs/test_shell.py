"""An interactive bash in a terminal, with jobs: job control goes on in every fork."""

from __future__ import annotations

import time
from typing import Self

from sandboxd.client import Sandbox
from tests.support.conversation import PATIENCE_S, Conversation

# A terminal of its own inside, whose other end `script` passes on.
TERMINAL = ["script", "-qfc", "bash --norc --noprofile -i", "/dev/null"]
CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Shell:
    """One shell, and its sandbox, from where what it does can be seen."""

    def __init__(self, sandbox: Sandbox, talk: Conversation) -> None:
        self.sandbox = sandbox
        self.send, self.expect, self.ask = talk.send, talk.expect, talk.ask
        self._exec_id = talk.exec_id

    @classmethod
    def open(cls, sandbox: Sandbox) -> Self:
        shell = cls(sandbox, Conversation.start(sandbox, TERMINAL))
        shell.ask("PS1='<$?>'; cd /root; stty -echo", r"<0>$")
        return shell

    def inherited(self, fork: Sandbox) -> Self:
        return type(self)(fork, Conversation.inherited(fork, self._exec_id))

    def wait_for(self, condition: str) -> None:
        """A command of the sandbox's, outside of the terminal."""
        deadline = time.monotonic() + PATIENCE_S
        while self.sandbox.commands.run(condition, check=False).exit_code != 0:
            assert time.monotonic() < deadline, condition
            time.sleep(0.01)

    def start_jobs(self) -> None:
        """Job 1 writes to a file all the time, job 2 sleeps, job 3 is stopped by the terminal."""
        self.ask("while :; do echo >> ticks; sleep 0.02; done &", r"\[1\] \d+\s+<0>$")
        self.ask("sleep 1000 &", r"\[2\] \d+\s+<0>$")
        self.send("cat > notes\n")
        self.send("before\n")
        self.wait_for("grep -q before notes")
        self.send(CTRL_Z)
        self.expect(r"\[3\]\+ +Stopped +cat > notes\s+<148>$")

    def check_jobs(self, word: str) -> None:
        """All are there; the stopped one goes on in the foreground and hears only this shell."""
        found = self.ask(
            "jobs -l",
            r"\[1\] +(\d+) Running[^\[]*\[2\]- +(\d+) Running +sleep[^\[]*"
            r"\[3\]\+ +(\d+) Stopped +cat > notes\s+<0>$",
        )
        writer, sleeper, stopped = found.groups()
        before = self.ask("wc -l < ticks", r"(\d+)\s+<0>$")[1]
        self.wait_for(f"test $(wc -l < ticks) -gt {before}")
        self.wait_for(f"ps -o stat= -p {stopped} | grep -q ^T")
        self.ask("fg %3", r"cat > notes\s*")
        self.send(f"{word}\n{CTRL_D}")
        self.expect(r"<0>$")
        self.ask("cat notes", rf"before\s+{word}\s+<0>$")
        self.send("fg %2\n")
        self.wait_for(f"ps -o stat= -p {sleeper} | grep -qF +")
        self.send(CTRL_C)
        self.expect(r"<130>$")
        self.ask("kill %1; wait %1", r"Terminated[^<]*<143>$")
        self.ask("jobs; echo none", r"none\s+<0>$")
        self.wait_for(f"! ps -p {writer},{sleeper},{stopped}")


def test_jobs_of_a_shell(programs_sandbox: Sandbox) -> None:
    shell = Shell.open(programs_sandbox)
    shell.start_jobs()
    shell.ask("shared=of-all; echo of-all > common", r"<0>$")
    forks = programs_sandbox.fork(2)
    try:
        shells = {"original": shell} | {
            f"fork-{index}": shell.inherited(fork) for index, fork in enumerate(forks)
        }
        # Each changes its variable and its file before any of them looks.
        for name, each in shells.items():
            each.ask(f"shared=$shared:{name}; echo {name} >> common", r"<0>$")
        for name, each in shells.items():
            each.ask("echo $shared, $(cat common)", rf"of-all:{name}, of-all {name}\s+<0>$")
            each.check_jobs(name)
    finally:
        for fork in forks:
            fork.kill()


def test_a_fork_of_a_fork_of_a_shell(programs_sandbox: Sandbox) -> None:
    shell = Shell.open(programs_sandbox)
    shell.start_jobs()
    [child] = programs_sandbox.fork()
    with child:
        of_child = shell.inherited(child)
        of_child.ask("word=child; echo $word", r"child\s+<0>$")
        [grandchild] = child.fork()
        with grandchild:
            of_grandchild = of_child.inherited(grandchild)
            of_grandchild.ask("word=$word:grandchild; echo $word", r"child:grandchild\s+<0>$")
            of_child.ask("echo $word", r"child\s+<0>$")
            of_grandchild.check_jobs("grandchild")
        of_child.check_jobs("child")
    shell.check_jobs("original")


def test_while_a_job_is_in_the_foreground(programs_sandbox: Sandbox) -> None:
    """A line that is half typed belongs to the terminal, what it reads to each shell alone."""
    shell = Shell.open(programs_sandbox)
    shell.ask("stty echo", r"<0>$")
    shell.send("bash -c 'while read word; do heard=$heard:$word; echo heard $heard; done'\n")
    shell.ask("one", r"heard :one\s*$")
    shell.send("half-")
    shell.expect("half-")  # the terminal's echo: it is there
    forks = programs_sandbox.fork(2)
    try:
        shells = [shell, *(shell.inherited(fork) for fork in forks)]
        for number, each in enumerate(shells):
            each.ask(f"line-{number}", rf"heard :one:half-line-{number}\s*$")
        for number, each in enumerate(shells):
            each.ask("again", rf"heard :one:half-line-{number}:again\s*$")
            each.send(CTRL_Z)
            each.expect(r"Stopped[^<]*<148>$")
            each.ask("fg", "bash -c")
            each.ask("more", rf"heard :one:half-line-{number}:again:more\s*$")
            each.send(CTRL_C)
            each.expect(r"<130>$")
    finally:
        for fork in forks:
            fork.kill()
