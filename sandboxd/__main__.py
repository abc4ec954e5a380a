"""The composition root of sandboxd: builds everything, serves, and takes everything down again.

SIGTERM or SIGINT: sandboxes are destroyed, the storage is unmounted, the run directory is removed,
exit status 0. `kill -9` leaves sandboxes running, and templates with the pool keeper; the next
start adopts or removes them. With `on_stop = "keep"` SIGTERM and SIGINT leave them, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

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
from sandboxd.logs.lives import log_lives
from sandboxd.logs.setup import set_up
from sandboxd.pausing import PausesAtExpiry
from sandboxd.recovery import RunLock
from sandboxd.scheduling import shorten_slice
from sandboxd.service import SandboxService
from sandboxd.systemd.manager import ServiceManager, hand_over
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
def run_dir(config: Config, *, own_socket: bool) -> Iterator[None]:
    """The run directory, made and held; removed at the end unless sandboxes are left in it, or a
    socket that is not the daemon's own."""
    try:
        # Traversable by all, because members of the socket's group must reach the socket.
        with locked(config.run_dir, 0o755):
            config.sandboxes_dir.mkdir(mode=0o700, exist_ok=True)
            config.root_mountpoint.mkdir(mode=0o755, exist_ok=True)
            try:
                yield
                if own_socket:
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


def reload(manager: ServiceManager, e2b: E2bEntry | None) -> None:
    """On SIGHUP: the keys of E2B's clients. A file that is refused leaves them as they were."""
    manager.tell_reloading()
    if e2b is not None:
        try:
            e2b[0].load()
            _LOG.info("E2B clients: %d keys", len(e2b[0]))
        except VenusError as error:
            _LOG.error("%s", error)
    manager.tell("READY=1")


async def serve(
    config: Config,
    launcher: Launcher,
    e2b: E2bEntry | None,
    metrics: socket.socket | None,
    manager: ServiceManager,
) -> None:
    """From recovery to the last sandbox's removal."""
    service = SandboxService(config, launcher)
    labels = [each.strip() for each in config.log_labels.split(",")]
    logging_lives = asyncio.ensure_future(log_lives(service.population.events, labels))
    service.pause_expired = PausesAtExpiry(service).begin
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
    app = build_app(context)
    listener = manager.listener or bind_socket(config.socket_path, socket_gid)
    servers = [build_server(app, listener, socket_gid=socket_gid, timeout_s=timeout_s)]
    if e2b is not None:
        e2b_app = build_e2b_app(context, e2b[0])
        servers.append(build_e2b_server(e2b_app, e2b[1], timeout_s=timeout_s))
    if metrics is not None:
        metrics_app = build_metrics_app(context)
        servers.append(build_metrics_server(metrics_app, metrics, timeout_s=timeout_s))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload, manager, e2b)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = [asyncio.ensure_future(each.serve()) for each in reversed(servers)]
    stopping = asyncio.ensure_future(stop.wait())
    for each in servers:
        await each.ready.wait()
    # What there is now stays, and is most of all there ever is: no collection looks at it again.
    gc.collect()
    gc.freeze()
    _LOG.info("serving on %s", config.socket_path)
    manager.tell("READY=1")
    alive = asyncio.ensure_future(
        manager.keep_alive(
            lambda: f"{len(service.population)} sandboxes, {len(templates.store)} templates"
        )
    )
    await asyncio.wait((*serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    alive.cancel()
    manager.tell("STOPPING=1")
    if config.on_stop == "keep" and (len(service.population) or len(templates.store)):
        leave(f"{len(service.population)} sandboxes and {len(templates.store)} templates")
    _LOG.info("stopping")
    launcher.images.stop()
    await service.close(creation.standing.close, templates.close)
    service.population.events.close()
    for each in servers:
        each.should_exit = True
    await asyncio.gather(*serving)
    await logging_lives
    stopping.cancel()
    await asyncio.to_thread(imports.close)


def leave(what: str) -> NoReturn:
    """End as a killed daemon does: everything lives on, and the next start finds it. To close
    connections first would end the commands of the clients at them."""
    _LOG.info("leaving %s to the next daemon", what)
    logging.shutdown()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; the exit status."""
    try:
        config = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        set_up(config)
        if os.geteuid() != 0:
            print("sandboxd: must run as root, to make namespaces and groups", file=sys.stderr)
            return 1
        # First, because they may be refused; until they are served, clients wait.
        manager = hand_over(os.environ, os.getpid())
        e2b, metrics = e2b_entry(config), metrics_entry(config)
        shorten_slice()
        raise_descriptor_limit()
        raise_pipe_limit(config.max_sandboxes)
        with (
            run_dir(config, own_socket=manager.listener is None),
            locked(config.state_dir, 0o700),
            prepared_launcher(config) as launcher,
        ):
            uvloop.run(serve(config, launcher, e2b, metrics, manager))
    except VenusError as error:
        print(f"sandboxd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
