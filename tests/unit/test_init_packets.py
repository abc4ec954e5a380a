"""Packets of inits: each as it was sent, whatever came before it over another link."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from sandboxd.init_packets import receive_packet

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        yield here, there


def test_a_short_packet_after_a_long_one_is_itself(pair: Pair) -> None:
    here, there = pair
    there.send(b"long" * 100)
    there.send(b"short")
    long = receive_packet(here)
    assert receive_packet(here) == (b"short", [])
    assert long == (b"long" * 100, [])


def test_the_end_is_an_empty_packet(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert receive_packet(here) == (b"", [])


def test_descriptors_come_along_and_stay_here(pair: Pair) -> None:
    here, there = pair
    reader, writer = os.pipe()
    try:
        socket.send_fds(there, [b"two"], [reader, writer])
        packet, [read_end, write_end] = receive_packet(here)
    finally:
        os.close(reader)
        os.close(writer)
    try:
        assert packet == b"two"
        assert not os.get_inheritable(read_end) and not os.get_inheritable(write_end)
        os.write(write_end, b"through")
        assert os.read(read_end, 7) == b"through"
    finally:
        os.close(read_end)
        os.close(write_end)
