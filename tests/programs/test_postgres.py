"""PostgreSQL with an open transaction, under load: what one fork commits no other sees."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Self

from sandboxd.client import CommandResult, Sandbox
from tests.support.conversation import PATIENCE_S, Conversation

BIN = "/usr/lib/postgresql/15/bin"
USER = "postgres"
PSQL = ["psql", "-X", "-q", "-A", "-t", "postgres"]
SERVER = f"exec {BIN}/postgres -D /srv/pg -c shared_buffers=16MB -c autovacuum_naptime=1 2>&1"
# Of pgbench's transactions: each moves the same amount in all four tables.
SUMS = """
select (select coalesce(sum(delta), 0) from pgbench_history),
       (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
       (select sum(bbalance) from pgbench_branches)
"""
TRANSACTION = """
create table words (id serial primary key, word text);
begin;
insert into words (word) select 'row ' || n from generate_series(1, 3000) n;
savepoint here;
declare numbers cursor with hold for select n from generate_series(1, 100000) n;
create temporary table scratch as select n from generate_series(1, 5000) n;
fetch 2 from numbers;
select pg_advisory_xact_lock(7);
select 'open', count(*) from words;
"""


class Postgres:
    """A server, pgbench, and a session with an open transaction, in one sandbox."""

    def __init__(self, sandbox: Sandbox, log: Conversation, session: Conversation) -> None:
        self.sandbox = sandbox
        self.log = log
        self._session = session

    @classmethod
    def start(cls, sandbox: Sandbox) -> Self:
        for place in ("/srv/pg", "/var/run/postgresql"):
            sandbox.commands.run(f"mkdir -p {place} && chown {USER} {place}")
        self = cls(sandbox, *(Conversation(lambda _: None, bytes, 0),) * 2)
        self.run(f"{BIN}/initdb -D /srv/pg -A trust -k --no-sync")
        self.log = Conversation.start(sandbox, ["sh", "-c", SERVER], user=USER)
        self.log.expect("ready to accept connections")
        self.run(
            f"{BIN}/pgbench -i -s 1 -q postgres; psql -X postgres -c 'create extension amcheck'"
        )
        load = [f"{BIN}/pgbench", "-c", "4", "-j", "2", "-R", "300", "-T", "3600", "postgres"]
        Conversation.start(sandbox, load, user=USER)
        self._session = Conversation.start(sandbox, PSQL, user=USER)
        self._session.ask(TRANSACTION, r"^1\n2\n\nopen\|3000$")
        return self

    def fork(self, count: int = 1) -> list[Self]:
        return [
            type(self)(
                each,
                Conversation.inherited(each, self.log.exec_id),
                Conversation.inherited(each, self._session.exec_id),
            )
            for each in self.sandbox.fork(count)
        ]

    def run(self, command: str) -> CommandResult:
        return self.sandbox.commands.run(command, user=USER)

    def query(self, text: str) -> str:
        """By a connection of its own."""
        return self.sandbox.commands.run(PSQL, user=USER, stdin=text).stdout.strip()

    def tell(self, text: str) -> str:
        """The answer of the session that was there."""
        return self._session.ask(f"{text};\n\\echo end", r"(?s)(.*?)^end$")[1].strip()

    def work(self) -> None:
        """Waits until pgbench has done some more."""
        count, deadline = "select count(*) from pgbench_history", time.monotonic() + PATIENCE_S
        enough = int(self.query(count)) + 30
        while int(self.query(count)) < enough:
            assert time.monotonic() < deadline, "pgbench stands still"

    def check(self, words: str) -> None:
        """All that is on the disk and in memory is whole, before and after a crash."""
        self.run("pkill pgbench")
        self._check(words)
        self.run(f"{BIN}/pg_ctl stop -D /srv/pg -m immediate -s")
        self.log.expect("database system is shut down")
        again = Conversation.start(self.sandbox, ["sh", "-c", SERVER], user=USER)
        again.expect("(?s)automatic recovery in progress.*ready to accept connections")
        self._check(words)

    def _check(self, words: str) -> None:
        assert len(set(self.query(SUMS).split("|"))) == 1
        assert self.query("select word from words where id > 3000 order by id") == words
        self.run(f"{BIN}/pg_amcheck --heapallindexed postgres")


@contextlib.contextmanager
def killed(servers: list[Postgres]) -> Iterator[list[Postgres]]:
    """At the end, also those that were added."""
    try:
        yield servers
    finally:
        for each in servers:
            each.sandbox.kill()


def test_postgres_with_an_open_transaction(programs_sandbox: Sandbox) -> None:
    original = Postgres.start(programs_sandbox)
    original.work()
    with killed(original.fork(2)) as forks:
        for each in (original, *forks):
            # The transaction is open in each, and not seen outside of it.
            assert each.query("select count(*) from words") == "0"
            assert each.query("select pg_try_advisory_lock(7)") == "f"
            assert (
                each.tell("select count(*) from words; select sum(n) from scratch")
                == "3000\n12502500"
            )
            assert each.tell("fetch 1 from numbers") == "3"
        for number, fork in enumerate(forks):
            fork.tell(f"insert into words (word) values ('fork-{number}')")
        forks += forks[0].fork()
        original.tell("rollback")
        assert original.query("select pg_try_advisory_lock(7)") == "t"
        forks[0].tell("insert into words (word) values ('last'); commit")
        forks[1].tell("rollback to here; insert into words (word) values ('late'); commit")
        assert forks[2].query("select count(*) from words") == "0"
        forks[2].tell("insert into words (word) values ('fork-of-fork'); commit")
        assert forks[2].tell("fetch 1 from numbers") == "4"
        for each in forks:
            each.work()
        original.tell("insert into words (id, word) values (4000, 'original')")
        original.check("original")
        forks[0].check("fork-0\nlast")
        forks[1].check("late")
        forks[2].check("fork-0\nfork-of-fork")
