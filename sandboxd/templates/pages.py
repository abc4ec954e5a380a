"""The pages of the templates, held by the pool keeper so that they outlive the daemon.

The daemon has its own descriptors of everything that it has the keeper hold; so when the keeper
dies, the next call starts another and hands it all of them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sandboxd import _native
from sandboxd.errors import InternalError, errno_text
from sandboxd.keeper import Found, KeeperGone, PoolKeeper


class KeptPages:
    """Blocking; every method may be called from any thread.

    Lock: `_lock` guards the dictionary, and is held for the length of a call, so that nothing is
    forgotten between a keeper's end and the next one's start. The keeper's own lock is taken under
    it.
    """

    def __init__(self, keeper: PoolKeeper) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._held: dict[str, _native.Template] = {}

    def open(self) -> Found:
        """Find the keeper of an earlier daemon, or start one."""
        with self._lock:
            return self._keeper.open()

    def end(self) -> None:
        """The templates end with this daemon."""
        with self._lock:
            self._held.clear()
            self._ask(self._keeper.end)

    def hold(self, template_id: str, native: _native.Template) -> None:
        """Have the template outlive the daemon. `LimitExceeded`: the keeper is full."""
        with self._lock:
            self._ask(lambda: self._keeper.hold(template_id, native.save(), native.descriptors()))
            self._held[template_id] = native

    def release(self, template_id: str) -> None:
        """Its pages stay as long as something maps them. No error if it is not held."""
        with self._lock:
            self._held.pop(template_id, None)
            self._ask(lambda: self._keeper.release(template_id))

    def load(self, template_id: str) -> _native.Template:
        """What an earlier daemon held, verified; it stays held. `NotFound` when it did not."""
        with self._lock, self._keeper.take(template_id) as taken:
            try:
                native = _native.load_template(taken.header, taken.descriptors)
            except _native.NativeError as error:
                raise InternalError(
                    "its pages are not what was saved",
                    operation="load template",
                    object=template_id,
                    cause=f"{error.operation} {error.object}: {errno_text(error.errno)}",
                ) from error
            self._held[template_id] = native
            return native

    def names(self) -> set[str]:
        """Every template that the keeper holds."""
        with self._lock:
            return {each.name for each in self._keeper.list()}

    def _ask(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KeeperGone:
            self._keeper.open()
            # It may also be the same one, when only the connection was lost.
            there = {each.name for each in self._keeper.list()}
            for template_id, native in self._held.items():
                if template_id not in there:
                    self._keeper.hold(template_id, native.save(), native.descriptors())
            act()
