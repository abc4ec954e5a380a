"""Where episodes get their sandboxes: created and prepared one by one, or forked.

The samples of one prompt start from the same state. With ``prepare_once`` the first of a group that
needs a sandbox prepares one and keeps it as a template; every sample, the first too, is a fork of
it. A preparation that fails fails them all, as it would have failed each. State that cannot be
captured is no failure: then each prepares a sandbox of its own.

All of a run is under one lease, so that a trainer that is killed leaves nothing at the daemon.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from sandboxd.client import AsyncLease, AsyncSandbox, AsyncTemplate
from sandboxd.errors import SnapshotRefused, VenusError
from venusrl.episode.record import SandboxTimes
from venusrl.episode.sandbox import (
    CommandCounter,
    CommandOutcome,
    DaemonSandbox,
    EpisodeSandbox,
    SandboxSettings,
)

_RUN_LABEL = "venusrl-run"
_GROUP_LABEL = "group"
_TRAJECTORY_LABEL = "trajectory"
_MAX_LABEL_CHARACTERS = 1024


@dataclass
class Sharing:
    """What forks had in common with their templates instead of each its own."""

    templates: int = 0
    forks: int = 0
    saved_bytes: int = 0
    """Memory of the templates' processes and memory files, once for each fork after the first."""


class _Group:
    """The template of one group, while samples of it still ask for forks."""

    def __init__(self, building: "asyncio.Task[AsyncTemplate | None]", siblings: int) -> None:
        self.building = building
        self.left = siblings
        self.forks = 0


class DaemonSandboxes:
    """Makes sandboxes at one daemon and counts the programs run in them."""

    def __init__(self, settings: SandboxSettings, counter: CommandCounter) -> None:
        self._settings = settings
        self._counter = counter
        self._creates = asyncio.Semaphore(settings.concurrent_creates)
        self._groups: dict[str, _Group] = {}
        self._lease: asyncio.Task[AsyncLease] | None = None
        self.sharing = Sharing()

    async def create(
        self, times: SandboxTimes, *, group: str = "", trajectory: str = "", siblings: int = 1
    ) -> EpisodeSandbox:
        """Labelled with its group and trajectory, so that it can be traced to its episode."""
        if self._settings.prepare_once and siblings > 1:
            return _ForkedSandbox(self, times, group, trajectory, siblings)
        return await self.create_plainly(times, group, trajectory)

    async def create_plainly(
        self, times: SandboxTimes, group: str, trajectory: str = ""
    ) -> DaemonSandbox:
        settings = self._settings
        started = time.monotonic()
        async with self._creates:
            requested = time.monotonic()
            sandbox = await AsyncSandbox.create(
                settings.image,
                memory_bytes=settings.memory_bytes,
                pids=settings.pids,
                timeout=settings.ttl_s,
                metadata=self._labels_of(group, trajectory),
                lease=await self._leased(),
                socket=settings.socket,
            )
        times.queue_s = requested - started
        times.create_s = time.monotonic() - requested
        return DaemonSandbox(sandbox, settings, self._counter, times)

    async def fork_prepared(
        self, times: SandboxTimes, group: str, trajectory: str, siblings: int, script: str
    ) -> DaemonSandbox:
        """A fork of the group's template, which the first of the group makes."""
        known = self._groups.get(group)
        if known is None:
            building = asyncio.create_task(self._build(group, script))
            known = self._groups[group] = _Group(building, siblings)
        started = time.monotonic()
        try:
            # Shielded: the others wait for it even if this one is cut.
            template = await asyncio.shield(known.building)
            times.setup_s = time.monotonic() - started
            if template is None:
                sandbox = await self.create_plainly(times, group, trajectory)
                await prepare_or_kill(sandbox, script)
                return sandbox
            return await self._fork(template, known, times, self._labels_of(group, trajectory))
        finally:
            known.left -= 1
            if known.left == 0:
                await self._forget(group)

    async def _fork(
        self, template: AsyncTemplate, group: _Group, times: SandboxTimes, labels: dict[str, str]
    ) -> DaemonSandbox:
        started = time.monotonic()
        async with self._creates:
            requested = time.monotonic()
            [sandbox] = await template.fork(
                timeout=self._settings.ttl_s, metadata=labels, lease=await self._leased()
            )
        times.queue_s = requested - started
        times.create_s = time.monotonic() - requested
        self.sharing.forks += 1
        group.forks += 1
        if group.forks > 1:
            self.sharing.saved_bytes += template.info.own_bytes
        return DaemonSandbox(sandbox, self._settings, self._counter, times)

    async def _build(self, group: str, script: str) -> AsyncTemplate | None:
        sandbox = await self.create_plainly(SandboxTimes(), group)
        try:
            await sandbox.prepare(script)
            template = await sandbox.snapshot(self._labels_of(group), await self._leased())
        except SnapshotRefused:
            return None
        finally:
            await sandbox.kill()
        self.sharing.templates += 1
        return template

    async def _forget(self, group: str) -> None:
        """The forks live on without their template."""
        building = self._groups.pop(group).building
        if not building.done():
            building.cancel()
        await asyncio.wait([building])
        if not building.cancelled() and building.exception() is None:
            template = building.result()
            if template is not None:
                # One that cannot be removed now is found by `sweep`; no sample fails for it.
                with contextlib.suppress(VenusError):
                    await template.remove()
                await template.close()

    async def _leased(self) -> AsyncLease:
        """The run's lease, which the first that needs a sandbox makes."""
        making = self._lease
        if making is None or (
            making.done() and (making.exception() is not None or making.result().lost is not None)
        ):
            settings = self._settings
            making = self._lease = asyncio.create_task(
                AsyncLease.create(
                    settings.lease_ttl_s, metadata=self._labels, socket=settings.socket
                )
            )
        # Shielded: the others wait for it even if this one is cut.
        return await asyncio.shield(making)

    async def _release(self) -> None:
        made, self._lease = self._lease, None
        if made is None:
            return
        await asyncio.wait([made])
        if made.exception() is None:
            async with made.result():
                pass

    async def sweep(self) -> int:
        """Remove the run's remaining sandboxes, and templates: a cancelled request may still have
        made one. How many sandboxes there were."""
        for group in list(self._groups):
            await self._forget(group)
        socket = self._settings.socket
        left = await AsyncSandbox.list(self._labels, socket=socket)
        for info in left:
            async with await AsyncSandbox.connect(info.id, socket=socket):
                pass
        for template in await AsyncTemplate.list(self._labels, socket=socket):
            await (await AsyncTemplate.get(template.id, socket=socket)).remove()
        await self._release()
        return len(left)

    @property
    def _labels(self) -> dict[str, str]:
        return {_RUN_LABEL: self._settings.run_label}

    def _labels_of(self, group: str, trajectory: str = "") -> dict[str, str]:
        """What a group has of its own may be anything: of a label's value it must be the length."""
        own = {_GROUP_LABEL: group[:_MAX_LABEL_CHARACTERS], _TRAJECTORY_LABEL: trajectory}
        return self._labels | {name: value for name, value in own.items() if value}


async def prepare_or_kill(sandbox: DaemonSandbox, script: str) -> None:
    """Nobody else knows of the sandbox yet, so nobody else would remove it."""
    try:
        await sandbox.prepare(script)
    except BaseException:
        await asyncio.shield(sandbox.kill())
        raise


class _ForkedSandbox:
    """Comes to be with its preparation, as a fork of what that left."""

    def __init__(
        self,
        source: DaemonSandboxes,
        times: SandboxTimes,
        group: str,
        trajectory: str,
        siblings: int,
    ) -> None:
        self._source = source
        self._times = times
        self._group = group
        self._trajectory = trajectory
        self._siblings = siblings
        self._fork: DaemonSandbox | None = None

    async def prepare(self, script: str) -> None:
        self._fork = await self._source.fork_prepared(
            self._times, self._group, self._trajectory, self._siblings, script
        )

    async def run(self, command: str, *, max_output_bytes: int) -> CommandOutcome:
        assert self._fork is not None, "prepare comes first"
        return await self._fork.run(command, max_output_bytes=max_output_bytes)

    async def verify(self, script: str) -> bool:
        assert self._fork is not None, "prepare comes first"
        return await self._fork.verify(script)

    async def kill(self) -> None:
        if self._fork is not None:
            await self._fork.kill()
