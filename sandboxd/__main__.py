"""The composition root of sandboxd: builds everything, serves, and takes everything down again.

SIGTERM or SIGINT: sandboxes are destroyed, the storage is unmounted, the run directory is removed,
exit status 0. `kill -9` leaves sandboxes running, and templates with the pool keeper; the next
start adopts or removes them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from sandboxd import __version__
from sandboxd.api import tcp
from sandboxd.api.app import build_app
from sandboxd.api.context import ApiContext
from sandboxd.api.metrics_listener import build_metrics_app, build_metrics_server
from sandboxd.api.peer import group_id
from sandboxd.api.server import bind_socket, build_server
from sandboxd.config import Config, load_config
from sandboxd.creation import Creation
from sandboxd.e2b.app import build_e2b_app
from sandboxd.e2b.keys import ApiKeys
from sandboxd.e2b.listener import bind, build_e2b_server
from sandboxd.errors import VenusError
from sandboxd.host_limits import raise_descriptor_limit, raise_pipe_limit
from sandboxd.images.queue import ImportQueue
from sandboxd.keeper import PoolKeeper
from sandboxd.launch import Launcher
from sandboxd.recovery import RunLock
from sandboxd.scheduling import shorten_slice
from sandboxd.service import SandboxService
from sandboxd.takeover import take_over
from sandboxd.templates.build import TemplateBuilder
from sandboxd.templates.service import TemplateService

_LOG = logging.getLogger("sandboxd")


def parse_arguments(arguments: Sequence[str]) -> Config:
    """The configuration; exits with usage on a wrong flag."""
    parser = argparse.ArgumentParser(prog="sandboxd", description="Serve sandboxes on this node.")
    parser.add_argument("--version", action="version", version=f"sandboxd {__version__}")
    parser.add_argument("--config", type=Path, help="TOML file with settings")
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", metavar="VALUE")
    options = vars(parser.parse_args(arguments))
    return load_config(file=options.pop("config"), overrides=options)


@contextlib.contextmanager
def locked(directory: Path, mode: int) -> Iterator[None]:
    """The directory, made and held against other daemons."""
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    lock = RunLock(directory / "lock")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def run_dir(config: Config) -> Iterator[None]:
    """The run directory, made and held; removed at the end unless sandboxes are left in it."""
    try:
        # Traversable by all, because members of the socket's group must reach the socket.
        with locked(config.run_dir, 0o755):
            config.sandboxes_dir.mkdir(mode=0o700, exist_ok=True)
            config.root_mountpoint.mkdir(mode=0o755, exist_ok=True)
            try:
                yield
                config.socket_path.unlink(missing_ok=True)
            finally:
                if not any(config.sandboxes_dir.iterdir()):
                    config.sandboxes_dir.rmdir()
                    config.root_mountpoint.rmdir()
    finally:
        # Refuses when something else is in it, which is then not ours to remove.
        with contextlib.suppress(OSError):
            config.run_dir.rmdir()


@contextlib.contextmanager
def prepared_launcher(config: Config) -> Iterator[Launcher]:
    """Storage mounted, groups made."""
    launcher = Launcher(config)
    launcher.prepare()
    try:
        yield launcher
    finally:
        launcher.close()


E2bEntry = tuple[ApiKeys, socket.socket]


def e2b_entry(config: Config) -> E2bEntry | None:
    """Where E2B's clients connect, and their keys, where the configuration says that they may."""
    if not config.e2b_address:
        return None
    keys = ApiKeys(config.e2b_keys_file)
    keys.load()
    listener = bind(config.e2b_address)
    host, port = listener.getsockname()[:2]
    _LOG.info("E2B clients: %d keys, address %s port %d", len(keys), host, port)
    return keys, listener


def metrics_entry(config: Config) -> socket.socket | None:
    """Where Prometheus connects, where the configuration says that it may."""
    if not config.metrics_listen:
        return None
    listener = tcp.bind(config.metrics_listen, "metrics_listen")
    host, port = listener.getsockname()[:2]
    _LOG.info("metrics: address %s port %d", host, port)
    return listener


def reload_keys(keys: ApiKeys) -> None:
    """On SIGHUP. A file that is refused leaves the keys as they were."""
    try:
        keys.load()
        _LOG.info("E2B clients: %d keys", len(keys))
    except VenusError as error:
        _LOG.error("%s", error)


async def serve(
    config: Config, launcher: Launcher, e2b: E2bEntry | None, metrics: socket.socket | None
) -> None:
    """From recovery to the last sandbox's removal."""
    service = SandboxService(config, launcher)
    creation = Creation(service, launcher)
    templates = TemplateService(service, creation, launcher, PoolKeeper(config.keeper_dir))
    await take_over(service)
    await templates.recover()
    socket_gid = group_id(config.socket_group)
    imports = ImportQueue(config.max_concurrent_imports, config.max_queued_imports)
    builder = TemplateBuilder(service, creation, templates, launcher.images)
    await service.in_thread(builder.failed.open)
    context = ApiContext(
        service=service,
        creation=creation,
        templates=templates,
        builder=builder,
        images=launcher.images,
        imports=imports,
    )
    timeout_s = config.request_timeout_s
    server = build_server(
        build_app(context),
        bind_socket(config.socket_path, socket_gid),
        socket_gid=socket_gid,
        timeout_s=timeout_s,
    )
    servers = [server]
    loop = asyncio.get_running_loop()
    if e2b is not None:
        keys, listener = e2b
        e2b_app = build_e2b_app(context, keys)
        servers.append(build_e2b_server(e2b_app, listener, timeout_s=timeout_s))
        loop.add_signal_handler(signal.SIGHUP, reload_keys, keys)
    if metrics is not None:
        metrics_app = build_metrics_app(context)
        servers.append(build_metrics_server(metrics_app, metrics, timeout_s=timeout_s))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = [asyncio.ensure_future(each.serve()) for each in reversed(servers)]
    stopping = asyncio.ensure_future(stop.wait())
    for each in servers:
        await each.ready.wait()
    _LOG.info("serving on %s", config.socket_path)
    await asyncio.wait((*serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    _LOG.info("stopping")
    launcher.images.stop()
    await service.close(creation.standing.close, templates.close)
    service.population.events.close()
    for each in servers:
        each.should_exit = True
    await asyncio.gather(*serving)
    stopping.cancel()
    await asyncio.to_thread(imports.close)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; the exit status."""
    try:
        config = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        logging.basicConfig(
            level=config.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        if os.geteuid() != 0:
            print("sandboxd: must run as root, to make namespaces and groups", file=sys.stderr)
            return 1
        # First, because they may be refused; until they are served, clients wait.
        e2b, metrics = e2b_entry(config), metrics_entry(config)
        shorten_slice()
        raise_descriptor_limit()
        raise_pipe_limit(config.max_sandboxes)
        with (
            run_dir(config),
            locked(config.state_dir, 0o700),
            prepared_launcher(config) as launcher,
        ):
            uvloop.run(serve(config, launcher, e2b, metrics))
    except VenusError as error:
        print(f"sandboxd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
