"""What the two ends of an engine's socket say to each other: one JSON object per line.

Requests carry an ``id`` and an ``op``: generate, abort, push, counts. Answers carry the ``id``
and either ``result`` or ``error``. The first line from the engine has id 0: it is ready.
Before its answer a request may get pieces of it, under ``partial``.
JSON, because both ends must agree on data only; floats survive it to the last bit.
"""

import json
from typing import Any

# Logprobs of a whole context; far above what one request can come to.
MAX_LINE_BYTES = 64 << 20

READY_ID = 0

# A turn is told in pieces of so many tokens, to whoever asked for ``partial``.
PARTIAL_TOKENS = 16


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("id"), int):
        raise ValueError(f"read an engine message: no object with an id: {line[:100]!r}")
    return message
