"""Packets of inits as they come to the daemon, with the descriptors that come along.

For the event loop only, whose links share one buffer: to make one of the size that a packet may
have takes longer than all else about a packet, of which nearly all are small.
"""

from __future__ import annotations

import array
import socket

from sandboxd.init_protocol import MAX_PACKET_FDS, MAX_PACKET_SIZE

_RIGHTS_BYTES = socket.CMSG_SPACE(MAX_PACKET_FDS * array.array("i").itemsize)
_buffer = bytearray(MAX_PACKET_SIZE)


def receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet, empty at the end of the connection, and descriptors that are the caller's."""
    # socket.recv_fds ignores its flags: descriptors would leak into every child.
    size, ancillary, _, _ = connection.recvmsg_into(
        [_buffer], _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for _, _, payload in ancillary:
        descriptors.frombytes(payload)
    return bytes(memoryview(_buffer)[:size]), list(descriptors)
