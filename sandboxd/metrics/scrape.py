"""One scrape: gathers what there is now, and writes it down with what was counted."""

from __future__ import annotations

import resource
from collections import Counter

import psutil

import sandboxd
from sandboxd.api.context import ApiContext
from sandboxd.lifecycle import State
from sandboxd.metrics.exposition import encode
from sandboxd.metrics.families import NodeFigures, ProcessFigures, families
from sandboxd.templates.template import Template

_PROCESS = psutil.Process()


async def scrape(context: ApiContext) -> bytes:
    """The text that Prometheus reads. What asks the kernel runs in a thread."""
    service = context.service
    figures = await _gather(context)
    return encode(families(figures, vars(service.counters), service.instruments))


async def _gather(context: ApiContext) -> NodeFigures:
    service, creation = context.service, context.creation
    private = await service.private_bytes()
    process = await service.in_thread(_process_figures)
    states = dict.fromkeys((each.value for each in State if each is not State.GONE), 0)
    committed = 0
    forks: Counter[Template] = Counter()
    for sandbox in service.population:
        states[sandbox.state.value] += 1
        if sandbox.record is not None:
            committed += sandbox.record.memory_bytes
        if sandbox.template is not None:
            forks[sandbox.template] += 1
    standing = creation.standing.counts()
    of_templates = {shape.template: n for shape, n in standing.items() if shape.template}
    return NodeFigures(
        version=sandboxd.__version__,
        storage_backend=service.storage_backend,
        sandboxes=states,
        standing={
            "image": sum(n for shape, n in standing.items() if shape.template is None),
            "template": sum(n for shape, n in standing.items() if shape.template is not None),
        },
        standing_templates=len(of_templates),
        creates_waiting=creation.waiting,
        templates=len(context.templates.store.visible(0, {})),
        leases=len(service.leases.ids),
        commands=service.population.commands,
        memory_committed=committed,
        memory_private=private,
        memory_shared=sum(template.shared_bytes * count for template, count in forks.items()),
        pool=context.templates.pool_bytes(),
        pool_limit=service.config.pool_size_bytes,
        process=process,
    )


def _process_figures() -> ProcessFigures:
    with _PROCESS.oneshot():
        times = _PROCESS.cpu_times()
        return ProcessFigures(
            start_s=_PROCESS.create_time(),
            cpu_s=times.user + times.system,
            memory=_PROCESS.memory_info().rss,
            fds=_PROCESS.num_fds(),
            max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
