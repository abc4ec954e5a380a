"""The families of tasks, one module each."""

from collections.abc import Mapping

from venusrl.tasks.families import create, edit, move, order
from venusrl.tasks.task import Family

_MODULES = (create, move, edit, order)

FAMILIES: Mapping[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
