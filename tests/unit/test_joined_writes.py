"""What is written during one turn of the loop goes out together, in order, and is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sandboxd.api.joined_writes import MAX_HELD_BYTES, JoinedWrites


class Wire(asyncio.Transport):
    """Notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "a closed transport refuses writes"
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


def sent_by(steps: Callable[[JoinedWrites, Wire], None]) -> list[bytes]:
    """What has gone out when the turn after the steps has begun."""

    async def main() -> list[bytes]:
        wire, loop = Wire(), asyncio.get_running_loop()
        faults: list[object] = []
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        steps(JoinedWrites(wire, loop), wire)
        await asyncio.sleep(0)
        assert not faults
        return wire.sent

    return asyncio.run(main())


def test_one_turn_is_one_write() -> None:
    def steps(joined: JoinedWrites, wire: Wire) -> None:
        joined.write(b"head ")
        joined.write(b"body")
        assert joined.get_write_buffer_size() == 9
        assert wire.sent == []

    assert sent_by(steps) == [b"head body"]


def test_a_flush_does_not_wait_for_the_turn_and_nothing_goes_out_twice() -> None:
    def steps(joined: JoinedWrites, wire: Wire) -> None:
        joined.write(b"one")
        joined.flush()
        assert wire.sent == [b"one"]
        joined.write(b"two")

    assert sent_by(steps) == [b"one", b"two"]


def test_much_is_not_held() -> None:
    def steps(joined: JoinedWrites, wire: Wire) -> None:
        joined.write(b"a")
        joined.write(b"b" * MAX_HELD_BYTES)
        assert wire.sent == [b"a" + b"b" * MAX_HELD_BYTES]

    assert len(sent_by(steps)) == 1


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_close_sends_what_is_held_and_an_abort_does_not(ending: str) -> None:
    def steps(joined: JoinedWrites, wire: Wire) -> None:
        joined.write(b"last")
        getattr(joined, ending)()
        assert joined.is_closing()

    assert sent_by(steps) == ([b"last"] if ending == "close" else [])


def test_a_peer_that_closes_meanwhile_is_no_fault() -> None:
    def steps(joined: JoinedWrites, wire: Wire) -> None:
        joined.write(b"unread")
        wire.closed = True

    assert sent_by(steps) == []
