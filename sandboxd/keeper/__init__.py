"""The memory of templates outlives the daemon: somebody else holds its descriptors meanwhile.

`store` says what such a holder does, `PoolKeeper` is the one that stands on the static program
`pool-keeper`; `wire` is its protocol, `start` finds or starts the process. Blocking: called from
threads.
"""

from __future__ import annotations

from sandboxd.keeper.pool_keeper import KeeperGone, PoolKeeper
from sandboxd.keeper.start import Found
from sandboxd.keeper.store import Held, PoolStore, Taken

__all__ = ["Found", "Held", "KeeperGone", "PoolKeeper", "PoolStore", "Taken"]
