"""What a socket says of itself, without taking anything out of its queues."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from collections.abc import Hashable, Iterator

Fields = Iterator[tuple[str, Hashable]]

# By level: all options that can be read, whose names do not matter here.
_OPTIONS = {"SOL_SOCKET": (1, 84), "IPPROTO_IP": (0, 52), "IPPROTO_IPV6": (41, 84),
            "IPPROTO_TCP": (6, 45), "IPPROTO_UDP": (17, 105)}  # fmt: skip
_FAMILIES = {
    socket.AF_UNIX: ("SOL_SOCKET",),
    socket.AF_INET: ("SOL_SOCKET", "IPPROTO_IP"),
    socket.AF_INET6: ("SOL_SOCKET", "IPPROTO_IP", "IPPROTO_IPV6"),
}
_PROTOCOLS = {socket.IPPROTO_TCP: "IPPROTO_TCP", socket.IPPROTO_UDP: "IPPROTO_UDP"}
# SO_ERROR takes the error away; SO_PEEK_OFF, filters, pidfds and TCP repair are not for reading.
_LEAVE_ALONE = {("SOL_SOCKET", 4), ("SOL_SOCKET", 77), ("IPPROTO_TCP", 35)}
_SO_PEERCRED, _SO_COOKIE, _TCP_INFO = ("SOL_SOCKET", 17), ("SOL_SOCKET", 57), ("IPPROTO_TCP", 11)
_SIOCOUTQ = 0x5411
_PEEK = 1 << 20


def _address(of: object) -> Hashable:
    return tuple(of) if isinstance(of, list) else of  # type: ignore[return-value]


def _names(end: socket.socket) -> Fields:
    for name, ask in (("name", end.getsockname), ("peer", end.getpeername)):
        try:
            yield f"socket/{name}", _address(ask())
        except OSError as error:
            yield f"socket/{name}", errno.errorcode[error.errno or 0]


def _options(end: socket.socket, host_to_inner: dict[int, int]) -> Fields:
    levels = [*_FAMILIES.get(socket.AddressFamily(end.family), ("SOL_SOCKET",))]
    if end.proto in _PROTOCOLS and end.family != socket.AF_UNIX:
        levels.append(_PROTOCOLS[end.proto])
    for level in levels:
        number, count = _OPTIONS[level]
        for option in range(1, count):
            key = (level, option)
            if key in _LEAVE_ALONE or key == _SO_COOKIE:
                continue
            with contextlib.suppress(OSError):
                value = end.getsockopt(number, option, 512)
                if key == _SO_PEERCRED:
                    pid, uid, gid = struct.unpack("iii", value)
                    yield "socket/peer credentials", (host_to_inner.get(pid, 0), uid, gid)
                elif key == _TCP_INFO:
                    yield "socket/TCP state", value[0]
                    yield "socket/TCP options", (value[5], value[6])
                else:
                    yield f"socket/{level} option {option}", value


def _queues(end: socket.socket) -> Fields:
    with contextlib.suppress(OSError):
        unsent = fcntl.ioctl(end.fileno(), _SIOCOUTQ, bytes(4))
        yield "queue/SIOCOUTQ", struct.unpack("i", unsent)[0]
    waiting = 0
    with contextlib.suppress(OSError):
        waiting = struct.unpack("i", fcntl.ioctl(end.fileno(), 0x541B, bytes(4)))[0]
    # An empty datagram that is peeked at is lost, as unix(7) does not say.
    if waiting > 0:
        with contextlib.suppress(OSError):
            data, sender = end.recvfrom(_PEEK, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            yield "queue/first", (data, _address(sender))


def socket_fields(fd: int, host_to_inner: dict[int, int]) -> Fields:
    """`fd` stays the caller's."""
    end = socket.socket(fileno=fd)
    try:
        yield "socket/kind", (int(end.family), int(end.type), end.proto)
        yield from _names(end)
        yield from _options(end, host_to_inner)
        yield from _queues(end)
    finally:
        end.detach()
