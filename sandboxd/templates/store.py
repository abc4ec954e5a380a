"""Which templates there are, and who may see them.

A template holds its pages, its layers and its image. Whoever forks one holds the layers too, so
that removing a template never takes anything away from a fork that is under way.

What outlives the daemon comes in this order: layers, pages, record. So a record says that all of
its template is there, and whatever has none is left of a template that was being made or removed.

Touched on the event loop only, but for what is handed to `in_thread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from sandboxd.errors import InternalError, LimitExceeded, NotFound, VenusError
from sandboxd.images import ImageStore
from sandboxd.storage.layers import LayerStore
from sandboxd.templates.pages import KeptPages
from sandboxd.templates.pool import PoolUsers
from sandboxd.templates.records import TemplateRecords
from sandboxd.templates.template import Template

_LOG = logging.getLogger("sandboxd")
T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]


class TemplateStore:
    """Templates that can be found by their id."""

    def __init__(
        self,
        records: TemplateRecords,
        pages: KeptPages,
        layers: LayerStore,
        images: ImageStore,
        in_thread: InThread[None],
        max_per_tenant: int,
        pool: PoolUsers,
    ) -> None:
        self._records = records
        self._pages = pages
        self._layers = layers
        self._images = images
        self._in_thread = in_thread
        self._max_per_tenant = max_per_tenant
        self._pool = pool
        self._templates: dict[str, Template] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def admit(self, tenant_uid: int) -> None:
        """`LimitExceeded` when the tenant may not have one more."""
        own = sum(each.record.tenant_uid == tenant_uid for each in self._templates.values())
        if own >= self._max_per_tenant:
            raise LimitExceeded(
                "no further template is admitted",
                operation="snapshot sandbox",
                object=f"tenant {tenant_uid}",
                cause=f"max_templates_per_tenant is {self._max_per_tenant}",
            )

    async def add(self, template: Template) -> None:
        """Enter a template whose layers are held under its id already."""
        record = template.record
        self._images.acquire(record.image)
        work = asyncio.ensure_future(self._in_thread(lambda: self._write_down(template)))
        try:
            await asyncio.shield(work)
        except BaseException:
            self._images.release(record.image)
            await asyncio.wait((work,))  # nothing interrupts the thread
            if work.exception() is None:
                await self._in_thread(lambda: self._forget(template.template_id))
            raise
        self._enter(template)

    def _write_down(self, template: Template) -> None:
        self._pages.hold(template.template_id, template.native)
        try:
            self._records.write(template.record)
        except BaseException:
            self._pages.release(template.template_id)
            raise

    def recover(self) -> list[Template]:
        """Everything that an earlier daemon left whole, and nothing else of what it left: the rest
        is removed. Blocking; their layers are held, their images not yet (`adopt`)."""
        self._records.open()
        self._pages.open()
        found = []
        for template_id, record in self._records.read_all().items():
            try:
                if record is None:
                    raise InternalError("its record cannot be read", object=template_id)
                self._layers.hold(template_id, record.layers)
                found.append(Template(record, self._pages.load(template_id)))
            except VenusError as error:
                _LOG.warning("removed template %s: %s", template_id, error)
                self._drop(template_id)
        for template_id in self._pages.names() - {each.template_id for each in found}:
            self._pages.release(template_id)
        return found

    async def adopt(self, template: Template) -> None:
        """Enter what `recover` found, if its image is still there."""
        try:
            self._images.acquire(template.record.image)
        except VenusError as error:
            _LOG.warning("removed template %s: %s", template.template_id, error)
            await self._in_thread(lambda: self._drop(template.template_id))
        else:
            self._enter(template)

    def _enter(self, template: Template) -> None:
        self._templates[template.template_id] = template
        self._pool.add(template.template_id, template.files)

    def visible(self, peer_uid: int, labels: Mapping[str, str]) -> list[Template]:
        """The peer's own templates, or all for root, that have all these labels."""
        return [
            each
            for each in self._templates.values()
            if peer_uid in (0, each.record.tenant_uid)
            and labels.items() <= each.record.labels.items()
        ]

    def find(self, peer_uid: int, template_id: str, operation: str) -> Template:
        """The template, if the peer may see it. Another tenant's does not exist, to the peer."""
        template = self._templates.get(template_id)
        if template is None or peer_uid not in (0, template.record.tenant_uid):
            raise NotFound(
                "there is no such template", operation=operation, object=template_id[:200]
            )
        return template

    def of_recipe(self, tenant_uid: int, digest: str) -> Template | None:
        """The tenant's template of that recipe, if there is one."""
        for each in self._templates.values():
            if (each.record.tenant_uid, each.record.recipe) == (tenant_uid, digest):
                return each
        return None

    def get(self, template_id: str) -> Template | None:
        """The template of that id."""
        return self._templates.get(template_id)

    async def remove(self, template: Template) -> None:
        """From here on it cannot be found; what only it stood on is removed."""
        if self._templates.pop(template.template_id, None) is None:
            return
        self._pool.remove(template.template_id)
        self._images.release(template.record.image)
        await asyncio.shield(self._in_thread(lambda: self._drop(template.template_id)))

    def _drop(self, template_id: str) -> None:
        try:
            self._forget(template_id)
        finally:
            self._layers.release(template_id)

    def _forget(self, template_id: str) -> None:
        # First the record: if the daemon dies in the middle, the next one removes the rest.
        self._records.forget(template_id)
        self._pages.release(template_id)
