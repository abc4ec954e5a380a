"""A live sandbox becomes a template's pages and layer; the sandbox goes on."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field

from sandboxd import _native
from sandboxd.errors import InternalError, LimitExceeded, SnapshotRefused, VenusError, errno_text
from sandboxd.protocol import OnExternal
from sandboxd.sandbox import LiveSandbox
from sandboxd.storage.layers import LayerStore
from sandboxd.templates.template import CapturedCommand
from sandboxd.tracer import Tracer

OPERATION = "snapshot sandbox"
_SCARCE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


@dataclass
class Externals:
    """The daemon's ends of a sandbox's pipes: what a fork must get new ones for."""

    descriptors: list[int] = field(default_factory=list)
    """Duplicates, so that a command that ends meanwhile takes nothing away."""
    commands: list[CapturedCommand] = field(default_factory=list)

    def close(self) -> None:
        """Drop the duplicates."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def add(self, descriptor: int | None) -> int | None:
        """Number of the pipe; None for none."""
        if descriptor is None:
            return None
        self.descriptors.append(os.dup(descriptor))
        return len(self.descriptors) - 1


def gather_externals(sandbox: LiveSandbox) -> Externals:
    """All pipes between the sandbox's commands and the daemon, as they are now."""
    externals = Externals()
    try:
        for running in sandbox.execs.values():
            if not running.is_program:
                continue  # it has ended
            stdin, stdout, stderr = running.stdin, running.stdout, running.stderr
            if running.is_terminal:
                master = None if stdout is None or stdout.eof else stdout.fd
                externals.commands.append(
                    CapturedCommand(
                        exec_id=running.exec_id,
                        pid=0 if running.exited else running.pid,
                        terminal=externals.add(master),
                    )
                )
                continue
            externals.commands.append(
                CapturedCommand(
                    exec_id=running.exec_id,
                    pid=0 if running.exited else running.pid,
                    stdin=externals.add(None if stdin is None or stdin.closed else stdin.fd),
                    stdout=externals.add(None if stdout is None or stdout.eof else stdout.fd),
                    stderr=externals.add(None if stderr is None or stderr.eof else stderr.fd),
                )
            )
    except BaseException:
        externals.close()
        raise
    return externals


def surviving_commands(
    externals: Externals, native: _native.Template
) -> tuple[CapturedCommand, ...]:
    """The commands as the capture found them: one whose leader ended just before it, so that
    its event is still on the way, has no leader in a fork."""
    children = set(native.children_of_init)
    slots = native.counts["external_slots"]

    def kept(slot: int | None) -> int | None:
        return slot if slot is not None and slot < slots else None

    found = []
    for command in externals.commands:
        command = CapturedCommand(
            exec_id=command.exec_id,
            pid=command.pid if command.pid in children else 0,
            stdin=kept(command.stdin),
            stdout=kept(command.stdout),
            stderr=kept(command.stderr),
            terminal=kept(command.terminal),
        )
        pipes = (command.stdin, command.stdout, command.stderr, command.terminal)
        if command.pid or any(slot is not None for slot in pipes):
            found.append(command)
    return tuple(found)


@dataclass(frozen=True)
class Captured:
    """What a capture gives: the engine's handle, and the layer, held by whoever asked."""

    native: _native.Template
    layer: str


@dataclass(frozen=True)
class CaptureWish:
    """What a capture is for."""

    again: bool = True
    """There may be another one of the sandbox: what it writes is tracked from here on."""
    on_external: OnExternal = "refuse"


USUAL = CaptureWish()


def capture(
    layers: LayerStore,
    sandbox_id: str,
    tracer: Tracer,
    descriptors: list[int],
    parent: _native.Template | None,
    holder: str,
    wish: CaptureWish,
) -> Captured:
    """Stop the sandbox, copy what is not yet in the pool, freeze its files, let it go on. Blocking.

    Raises `SnapshotRefused` for state that
    cannot be rebuilt, and `CaptureCut` when the sandbox is beyond help; whatever it raises, no
    layer is left.
    """
    names: list[str] = []
    try:
        layers.flush(sandbox_id)
        native = tracer.capture(
            descriptors,
            lambda: names.append(layers.freeze(sandbox_id, holder)),
            parent,
            keep=wish.again,
            on_external=wish.on_external,
        )
    except BaseException as error:
        if names:
            with contextlib.suppress(VenusError):
                layers.release(holder)
        if isinstance(error, _native.Refused):
            raise SnapshotRefused(
                "the sandbox cannot be captured as it is",
                operation=OPERATION,
                object=sandbox_id,
                cause=f"{error.process}: {error.object}: {error.reason}",
            ) from error
        if isinstance(error, _native.NativeError):
            raise _native_error(error, sandbox_id) from error
        raise
    return Captured(native, names[0])


def _native_error(error: _native.NativeError, sandbox_id: str) -> VenusError:
    error_class = LimitExceeded if error.errno in _SCARCE else InternalError
    return error_class(
        "the capture failed",
        operation=OPERATION,
        object=sandbox_id,
        cause=f"{error.operation} {error.object}: {errno_text(error.errno)}",
    )
