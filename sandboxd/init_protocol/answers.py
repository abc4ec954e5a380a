"""Packets from init to the daemon."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sandboxd.init_protocol.numbers import (
    HEADER,
    ExecKind,
    ExecState,
    ExecStep,
    ExitFlag,
    FdBit,
    MessageType,
)
from sandboxd.init_protocol.wire import (
    PROTOCOL_VERSION,
    ProtocolError,
)

_HELLO_REPLY = struct.Struct("<IIQII")
_STARTED = struct.Struct("<QiI")
_FAILED = struct.Struct("<QIi")
_ACK = struct.Struct("<QiI")
_EXIT = struct.Struct("<QIIIIQQQQ")
_EXEC_INFO_TAIL = struct.Struct("<iIIIII")


@dataclass(frozen=True)
class HelloReply:
    request_id: int
    protocol_version: int
    exec_count: int
    uptime_ms: int
    sandbox_id: str


@dataclass(frozen=True)
class Started:
    request_id: int
    exec_id: int
    pid: int
    fds: tuple[int, ...] = ()
    """The master of its terminal, if it has one; whoever takes the answer owns it."""


@dataclass(frozen=True)
class Failed:
    """The exec never ran; init has forgotten it, no RELEASE is due."""

    request_id: int
    exec_id: int
    step: ExecStep
    errno: int


@dataclass(frozen=True)
class Ack:
    """Answer to KILL, STDIN_CLOSED, RELEASE, KEEP_TERMINAL, SOCKET. ``errno`` 0 is success."""

    request_id: int
    exec_id: int
    errno: int
    fds: tuple[int, ...] = ()
    """The socket, if one was asked for; whoever takes the answer owns it."""


@dataclass(frozen=True)
class RequestError:
    """Init could not understand the packet."""

    request_id: int
    errno: int


@dataclass(frozen=True)
class Exited:
    """Event, and part of ExecInfo. Exactly one of ``exit_code`` and ``signal`` is set."""

    exec_id: int
    exit_code: int | None
    signal: int | None
    timed_out: bool
    killed_by_request: bool
    core_dumped: bool
    user_us: int
    system_us: int
    max_rss_kib: int
    duration_us: int


@dataclass(frozen=True)
class ExecInfo:
    """One exec of LIST. ``fd_mask`` names the descriptors that came with the packet, in order."""

    request_id: int
    exec_id: int
    pid: int
    state: ExecState
    kind: ExecKind
    fd_mask: FdBit
    timeout_ms: int
    remaining_ms: int
    exited: Exited | None


@dataclass(frozen=True)
class ListEnd:
    request_id: int


Answer = HelloReply | Started | Failed | Ack | RequestError | Exited | ExecInfo | ListEnd


def _decode_exit(payload: bytes) -> Exited:
    exec_id, how, code, flags, _, user_us, system_us, max_rss_kib, duration_us = _EXIT.unpack(
        payload
    )
    return Exited(
        exec_id=exec_id,
        exit_code=code if how == 0 else None,
        signal=code if how == 1 else None,
        timed_out=bool(flags & ExitFlag.TIMED_OUT),
        killed_by_request=bool(flags & ExitFlag.KILLED_BY_REQUEST),
        core_dumped=bool(flags & ExitFlag.CORE_DUMPED),
        user_us=user_us,
        system_us=system_us,
        max_rss_kib=max_rss_kib,
        duration_us=duration_us,
    )


def _decode_exec_info(request_id: int, payload: bytes) -> ExecInfo:
    exited = _decode_exit(payload[: _EXIT.size])
    pid, state, kind, fd_mask, timeout_ms, remaining_ms = _EXEC_INFO_TAIL.unpack(
        payload[_EXIT.size :]
    )
    return ExecInfo(
        request_id=request_id,
        exec_id=exited.exec_id,
        pid=pid,
        state=ExecState(state),
        kind=ExecKind(kind),
        fd_mask=FdBit(fd_mask),
        timeout_ms=timeout_ms,
        remaining_ms=remaining_ms,
        exited=exited if state == ExecState.EXITED else None,
    )


def _decode_hello_reply(request_id: int, payload: bytes) -> HelloReply:
    version, exec_count, uptime_ms, id_size, _ = _HELLO_REPLY.unpack_from(payload)
    text = payload[_HELLO_REPLY.size :]
    if len(text) != id_size or not text.endswith(b"\0"):
        raise ProtocolError("HELLO_REPLY with a bad sandbox id")
    return HelloReply(request_id, version, exec_count, uptime_ms, text[:-1].decode())


def decode_packet(packet: bytes) -> Answer:
    """One packet from init. Raises ProtocolError on anything that init does not send."""
    try:
        version, kind, payload_size, request_id = HEADER.unpack_from(packet)
        payload = packet[HEADER.size :]
        if version != PROTOCOL_VERSION or payload_size != len(payload):
            raise ProtocolError(f"packet of version {version}, {len(payload)} bytes of payload")
        match kind:
            case MessageType.HELLO_REPLY:
                return _decode_hello_reply(request_id, payload)
            case MessageType.STARTED:
                exec_id, pid, _ = _STARTED.unpack(payload)
                return Started(request_id, exec_id, pid)
            case MessageType.FAILED:
                exec_id, step, error = _FAILED.unpack(payload)
                return Failed(request_id, exec_id, ExecStep(step), error)
            case MessageType.ACK:
                exec_id, error, _ = _ACK.unpack(payload)
                return Ack(request_id, exec_id, error)
            case MessageType.ERROR:
                _, error, _ = _ACK.unpack(payload)
                return RequestError(request_id, error)
            case MessageType.EXEC_INFO:
                return _decode_exec_info(request_id, payload)
            case MessageType.LIST_END:
                return ListEnd(request_id)
            case MessageType.EXITED:
                return _decode_exit(payload)
    except (struct.error, ValueError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"malformed packet from init: {error}") from error
    raise ProtocolError(f"packet of unknown type {kind} from init")
