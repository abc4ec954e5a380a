"""Runs inside a sandbox: an interpreter that has imported what programs need, and runs each program
that `warm-python` hands to it in a fork of itself.

Usage: python3 warm_python_program.py reseed|keep MODULE…

Standard library only, of any Python from 3.8. A program has the standard streams, arguments,
environment and directory of the `warm-python` that stands for it, a session of its own, and ends
with all its descendants when that is killed.

Wire: REQUEST, with four descriptors (standard streams and directory), then the arguments and
variables, each ended by NUL. From then on one byte per signal one way, a wait status the other way.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any

# Small installations are without; descendants that fled their session then live on.
with contextlib.suppress(ImportError):
    import ctypes

NAME = "\0venus-warm-python"
REQUEST = struct.Struct("=4I")
STATUS = struct.Struct("=i")
MAX_REQUEST_BYTES = 4 << 20
BACKLOG = 64
PR_SET_CHILD_SUBREAPER = 36
LOST_OUTPUT = 120
"""Of an interpreter that could not write what it had buffered."""
INTERRUPTED = 130
_OF_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)


class Program:
    """What is to be run, and where."""

    def __init__(
        self, strings: list[bytes], argument_count: int, umask: int, descriptors: list[int]
    ) -> None:
        self.arguments = [os.fsdecode(each) for each in strings[:argument_count]]
        self.environment = strings[argument_count:]
        self.umask = umask
        self.descriptors = descriptors


# -- the interpreter that stands -----------------------------------------------------------------


def serve(reseed: bool) -> None:
    """Until it is killed; each connection is served in a fork."""
    kept = None if reseed else random.getstate()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(NAME)
    listener.listen(BACKLOG)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Nothing of what was imported is looked at by a collection, which would copy its pages.
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        if not is_own_user(connection) or os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervise(connection, kept)


def is_own_user(connection: socket.socket) -> bool:
    """Whoever connects gets a process of this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, gid = struct.unpack("=3i", credentials)
    return bool((uid, gid) == (os.geteuid(), os.getegid()))


# -- one program ---------------------------------------------------------------------------------


def supervise(connection: socket.socket, kept: Any) -> None:
    """Starts the program, passes signals on, tells how it ended. Never returns."""
    try:
        program = receive(connection)
    except (OSError, ValueError, struct.error):
        os._exit(1)
    if "ctypes" in sys.modules:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (connection.detach(), awake, wake):
            os.close(descriptor)
        run(program, kept)
    for descriptor in program.descriptors:
        os.close(descriptor)
    try:
        accompany(connection, awake, pid)
    finally:
        os._exit(0)


def receive(connection: socket.socket) -> Program:
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(4 * descriptors.itemsize)
    head, control, _, _ = connection.recvmsg(REQUEST.size, room)
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    argument_count, variable_count, umask, size = REQUEST.unpack(head)
    if len(descriptors) != 4 or size > MAX_REQUEST_BYTES:
        raise ValueError("not a request")
    content = b""
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            raise ValueError("a request that was cut")
        content += piece
    strings = content.split(b"\0")[:-1]
    if len(strings) != argument_count + variable_count or argument_count == 0:
        raise ValueError("not a request")
    return Program(strings, argument_count, umask, list(descriptors))


def accompany(connection: socket.socket, awake: int, pid: int) -> None:
    while True:
        both: list[Any] = [connection, awake]
        ready, _, _ = select.select(both, [], [])
        if awake in ready:
            os.read(awake, 4096)
            status = reap(pid)
            if status is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(STATUS.pack(status))
                return
        if connection in ready:
            numbers = connection.recv(4096)
            if not numbers:  # it was killed, and the program goes with it
                end_all(pid)
                return
            for number in numbers:
                with contextlib.suppress(OSError):
                    (os.killpg if number in _OF_GROUP else os.kill)(pid, number)


def reap(pid: int) -> int | None:
    """The program's wait status once it has ended; orphans of it are reaped, too."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                found = status
    return found


def end_all(pid: int) -> None:
    """Kill until no child is left: those of whoever is killed become children of this process."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for each in children():
                with contextlib.suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            os.waitpid(-1, 0)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(each) for each in file.read().split()]


# -- in the program ------------------------------------------------------------------------------


def run(program: Program, kept: Any) -> None:
    """Becomes the program, to its end."""
    os.setsid()
    os.umask(program.umask)
    os.fchdir(program.descriptors[3])
    for number, descriptor in enumerate(program.descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in program.descriptors:
        if descriptor > 2:
            os.close(descriptor)
    os.environ.clear()
    for variable in program.environment:
        name, _, value = variable.partition(b"=")
        if name:
            os.environb[name] = value
    open_streams()
    seed(kept)
    for each in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if each:
            sys.path.insert(1, each)
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True
    status = 0
    try:
        execute(program.arguments[1:])
    except BaseException as error:
        status = failed(error)
    finish(status)


def failed(error: BaseException) -> int:
    """Says what there is to say; the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def finish(status: int) -> None:
    """The end of an interpreter, but for taking everything down, which would touch, and copy, all
    the memory that it shares."""
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            if stream is sys.stdout:
                print(f"Exception ignored in: {stream!r}\n{error!r}", file=sys.stderr)
                status = status or LOST_OUTPUT
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def open_streams() -> None:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw),
            encoding=before.encoding,
            errors=before.errors,
            newline=None if number == 0 else "\n",
            line_buffering=number == 2 or raw.isatty(),
            write_through=unbuffered and number > 0,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def seed(kept: Any) -> None:
    """Every fork would draw the same numbers. Python's own generator seeds itself after a fork."""
    if kept is not None:
        random.setstate(kept)
        return
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def execute(arguments: list[str]) -> None:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    first = arguments[0] if arguments else "-"
    code: str | bytes
    if first == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        code, where = arguments[1], "<string>"
    elif first == "-":
        sys.argv, sys.path[0] = ["-" if arguments else "", *arguments[1:]], ""
        code = sys.stdin.buffer.read()
        main.__file__ = where = "<stdin>"
    else:
        sys.argv = list(arguments)
        if os.path.isdir(first) or first.endswith((".zip", ".pyz")):
            sys.path[0] = first
            runpy.run_path(first, run_name="__main__")
            return
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        code = read_program(first)
        main.__file__ = where = os.path.abspath(first)
    exec(compile(code, where, "exec"), main.__dict__)


def read_program(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(
            f"{sys.executable}: can't open file {os.path.abspath(path)!r}: {reason}",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    serve(sys.argv[1] == "reseed")
