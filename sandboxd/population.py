"""Which sandboxes there are, who may see them, and whether one more is admitted. No I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from sandboxd.config import Config
from sandboxd.ended_execs import EndedExecs
from sandboxd.errors import LimitExceeded, NotFound
from sandboxd.events import EventLog
from sandboxd.lifecycle import EndReason
from sandboxd.output_ring import KeptOutput
from sandboxd.sandbox import ExecBudget, LiveSandbox, gone_error
from sandboxd.templates.pool import PoolUsers

REMEMBERED_ENDS = 4096


class Population:
    """A sandbox is in here from the moment that its create is admitted until nothing of it is
    left; afterwards its id is remembered for a while, so that later requests learn why it ended.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sandboxes: dict[str, LiveSandbox] = {}
        self._by_tenant: Counter[int] = Counter()
        self._ends: OrderedDict[str, tuple[int, EndReason | None]] = OrderedDict()
        self._budget = ExecBudget(per_sandbox=config.max_execs_per_sandbox, total=config.max_execs)
        self._kept_output = KeptOutput(
            ring_bytes=config.kept_output_bytes,
            total_bytes=config.max_kept_output_bytes,
            readers_per_sandbox=config.max_readers_per_sandbox,
            readers=config.max_readers,
        )
        self.events = EventLog()
        self.pool = PoolUsers()
        """The sandboxes here are users of the templates that they were forked from."""

    def __len__(self) -> int:
        return len(self._sandboxes)

    def __iter__(self) -> Iterator[LiveSandbox]:
        return iter(list(self._sandboxes.values()))

    @property
    def commands(self) -> int:
        """Of all sandboxes, file operations too, as `max_execs` counts them."""
        return self._budget.used

    def new(self, sandbox_id: str, tenant_uid: int, image: str) -> LiveSandbox:
        """A sandbox that is being created or adopted; not yet in the population."""
        config = self._config
        return LiveSandbox(
            sandbox_id,
            tenant_uid,
            image,
            self._budget,
            self.pool,
            self.events,
            self._kept_output,
            EndedExecs(config.kept_ended_execs, config.kept_ended_execs_s),
        )

    def add(self, sandbox: LiveSandbox) -> None:
        """From here on it counts and can be found."""
        self._sandboxes[sandbox.sandbox_id] = sandbox
        self._by_tenant[sandbox.tenant_uid] += 1

    def remove(self, sandbox: LiveSandbox) -> None:
        """Nothing of it is left. Its end is remembered, if anybody was told of it."""
        del self._sandboxes[sandbox.sandbox_id]
        self._by_tenant[sandbox.tenant_uid] -= 1
        if self._by_tenant[sandbox.tenant_uid] == 0:
            del self._by_tenant[sandbox.tenant_uid]
        if sandbox.record is not None:
            self._ends[sandbox.sandbox_id] = (sandbox.tenant_uid, sandbox.end_reason)
            while len(self._ends) > REMEMBERED_ENDS:
                self._ends.popitem(last=False)

    def visible(self, peer_uid: int) -> list[LiveSandbox]:
        """The peer's own sandboxes, or all for root."""
        return [each for each in self if peer_uid in (0, each.tenant_uid)]

    def find(self, peer_uid: int, sandbox_id: str, operation: str) -> LiveSandbox:
        """The sandbox, if the peer may see it. Another tenant's does not exist, to the peer."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and peer_uid in (0, sandbox.tenant_uid):
            return sandbox
        tenant_uid, reason = self._ends.get(sandbox_id, (None, None))
        if tenant_uid is not None and peer_uid in (0, tenant_uid):
            raise gone_error(sandbox_id, operation, reason)
        raise NotFound("there is no such sandbox", operation=operation, object=sandbox_id[:200])

    def image_users(self, image: str) -> list[str]:
        """Ids of the sandboxes that stand on the image."""
        return [each.sandbox_id for each in self if each.image == image]

    def admit(self, tenant_uid: int, queued_creates: int, count: int = 1) -> None:
        """`LimitExceeded` when there is no room for `count` more."""
        config = self._config
        for present, limit, name in (
            (len(self), config.max_sandboxes, "max_sandboxes"),
            (
                self._by_tenant.get(tenant_uid, 0),
                config.max_sandboxes_per_tenant,
                "max_sandboxes_per_tenant",
            ),
            (queued_creates, config.max_queued_creates, "max_queued_creates"),
        ):
            if present + count > limit:
                raise LimitExceeded(
                    "no further sandbox is admitted",
                    operation="create sandbox",
                    object=f"tenant {tenant_uid}",
                    cause=f"{name} is {limit}",
                )
