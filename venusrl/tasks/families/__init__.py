"""The families of tasks, one module each."""

from collections.abc import Mapping

from venusrl.tasks.families import (
    archives,
    count,
    create,
    edit,
    environment,
    grant,
    move,
    order,
    permissions,
    processes,
    question,
    search,
    sort,
)
from venusrl.tasks.task import Family

_ONE_TURN = (
    *(create, move, edit, count, search, permissions, archives, sort, processes, environment),
)
_TWO_TURNS = (order, grant, question)

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (*_ONE_TURN, *_TWO_TURNS)
}
