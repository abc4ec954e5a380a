"""Wires the log of a daemon: standard error, the format that is asked for, and the bounds."""

from __future__ import annotations

import logging
import sys
import time

from sandboxd.config import Config
from sandboxd.logs import lives
from sandboxd.logs.formats import JsonFormatter, TextFormatter
from sandboxd.logs.rate import RateLimit


def set_up(config: Config) -> None:
    """Once, before anything is logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    # Lives are as many as creates, whose rate the daemon itself bounds.
    handler.addFilter(RateLimit(time.monotonic, frozenset({lives.LOGGER})))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
