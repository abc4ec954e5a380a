"""Who is at the other end of the socket, as the kernel says."""

from __future__ import annotations

import errno
import grp
import socket
import struct
from dataclasses import dataclass

from sandboxd.errors import Unauthorized

_SO_PEERGROUPS = 59
_UCRED = struct.Struct("iII")
# What Python lets a socket option hold. Of a peer with more groups than that only the primary one
# counts.
_MAX_OPTION_BYTES = 1024


@dataclass(frozen=True)
class Peer:
    """Credentials that the peer had when it connected; its uid is the tenant."""

    pid: int
    uid: int
    allowed: bool

    @property
    def is_root(self) -> bool:
        """Root sees all tenants and may import and build images."""
        return self.uid == 0


def peer_of(connection: socket.socket, socket_gid: int | None) -> Peer:
    """The peer of a connected Unix socket.

    The socket file's mode already keeps others out; this check still holds where somebody has
    changed the mode, or hands an open connection on.
    """
    pid, uid, gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    allowed = uid == 0 or (
        socket_gid is not None and (gid == socket_gid or socket_gid in _groups_of(connection))
    )
    return Peer(pid=pid, uid=uid, allowed=allowed)


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def require_allowed(peer: Peer | None) -> Peer:
    """The peer, or `Unauthorized`."""
    if peer is None or not peer.allowed:
        raise Unauthorized(
            "the peer may not use this daemon",
            operation="connect",
            object="socket",
            cause="it is neither root nor a member of the socket's group",
        )
    return peer


def require_root(peer: Peer, operation: str, object: str) -> None:
    """Some things act on the host's files or network, and are root's alone."""
    if not peer.is_root:
        raise Unauthorized(
            "only root may do this",
            operation=operation,
            object=object,
            cause=f"the peer's uid is {peer.uid}",
        )


def group_id(name: str) -> int | None:
    """Number of the group; None when there is no such group (then only root may connect)."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
