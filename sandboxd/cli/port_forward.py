"""port-forward."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass

import click

from sandboxd.client import AsyncPortForward, AsyncSandbox, VenusError
from sandboxd.client._port_forward import LOCALHOST
from sandboxd.errors import NotFound, SandboxGone


@dataclass(frozen=True)
class Ports:
    """A local port, 0 for any that is free, and the sandbox's."""

    local: int
    remote: int


class PortsType(click.ParamType):  # type: ignore[type-arg]
    """`[LOCAL:]PORT`; with nothing before the colon, any local port that is free."""

    name = "[LOCAL:]PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Ports:
        if isinstance(value, Ports):
            return value
        local, colon, remote = str(value).rpartition(":")
        if not colon:
            local = remote
        for text, lowest in ((local or "0", 0), (remote, 1)):
            if not (text.isascii() and text.isdigit() and lowest <= int(text) <= 65535):
                self.fail(f"{str(value)!r} is not of the form {self.name}", param, ctx)
        return Ports(int(local or "0"), int(remote))


@click.command("port-forward")
@click.argument("sandbox_id", metavar="SANDBOX")
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True, type=PortsType())
@click.option(
    "--address", default=LOCALHOST, show_default=True, help="Address of this machine to listen at."
)
@click.pass_obj
def port_forward(socket: str, sandbox_id: str, ports: tuple[Ports, ...], address: str) -> None:
    """Let ports of this machine lead to ports of a sandbox, until interrupted or until the sandbox
    ends."""
    asyncio.run(_forward(socket, sandbox_id, ports, address))


async def _forward(socket: str, sandbox_id: str, ports: tuple[Ports, ...], address: str) -> None:
    sandbox = await AsyncSandbox.connect(sandbox_id, socket=socket)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_error(error: VenusError) -> None:
        if isinstance(error, SandboxGone | NotFound) and not over.done():
            over.set_exception(error)
        else:
            click.echo(f"venus-sandbox: {error}", err=True)

    def stop() -> None:
        if not over.done():
            over.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(sandbox.close)
        for each in ports:
            forward = sandbox.forward_port(each.remote, each.local, host=address, on_error=on_error)
            await _listen(stack, forward)
            host, port = forward.address
            click.echo(f"Forwarding from {host}:{port} -> {each.remote}")
        await over


async def _listen(stack: contextlib.AsyncExitStack, forward: AsyncPortForward) -> None:
    try:
        await stack.enter_async_context(forward)
    except OSError as error:
        host, port = forward.address
        raise click.ClickException(f"listen at {host}:{port}: {error.strerror}") from error
