"""Any vLLM server as an engine: OpenAI's completions over HTTP, with token ids.

For the *stock mode* of the router: the server runs vLLM's own scheduler (`--scheduling-policy
priority`; without it a priority other than 0 is refused), and knows of a trajectory only the
priority that each of its turns comes with. What is held back, waits in the router.

Does not own the server: whoever does, starts it again. Weights reach it by `push`, if at all.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from venusrl.engine.generation import EngineError, FinishReason, Generation
from venusrl.engine.shared_table import Claim

_HEALTH_INTERVAL_S = 2.0
_HEALTH_TIMEOUT_S = 10.0
_RETRY_S = 0.2
_CONNECT_TIMEOUT_S = 10.0
# One line of the stream is one token with its logprob.
_MAX_LINE_BYTES = 1 << 20

Push = Callable[[str, int], Awaitable[None]]


class HttpEngine:
    """A server at `url`. Made by `connect`."""

    def __init__(self, url: str, model: str, client: httpx.AsyncClient, push: Push | None) -> None:
        self.url, self.model, self.version = url, model, 0
        self._client, self._push = client, push
        self._dead: str | None = None
        self._ended = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def connect(
        cls, url: str, model: str, *, timeout_s: float = 300.0, push: Push | None = None
    ) -> HttpEngine:
        """Waits until the server answers.

        `push(path, version)` brings it new weights; without it the weights stay as they are.

        Raises:
            EngineError: it does not answer within `timeout_s`, or `url` is none.
        """
        # As many connections as turns: the router bounds these.
        limits = httpx.Limits(max_connections=None)
        timeouts = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        where = f"connect to the engine at {url}"
        try:
            client = httpx.AsyncClient(
                base_url=url, timeout=timeouts, limits=limits, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise EngineError(f"{where}: {error}") from error
        fault: str | None = "none yet"
        try:
            if client.base_url.scheme not in ("http", "https"):
                raise EngineError(f"{where}: it does not begin with http:// or https://")
            async with asyncio.timeout(timeout_s):
                while True:
                    fault = await _fault(client)
                    if fault is None:
                        break
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            await client.aclose()
            raise EngineError(
                f"{where}: no answer within {timeout_s:g} s; the last was {fault}"
            ) from None
        except BaseException:
            await client.aclose()
            raise
        return cls(url, model, client, push)

    @property
    def dead(self) -> str | None:
        return self._dead

    async def ended(self) -> None:
        await self._ended.wait()

    async def kv_tokens(self) -> int:
        """How many tokens the server's cache holds, by its metrics.

        Raises:
            EngineError: it does not say.
        """
        where = f"ask {self.url} for the size of its cache"
        try:
            text = (await self._client.get("/metrics", timeout=_HEALTH_TIMEOUT_S)).text
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: it was closed
            raise EngineError(f"{where}: {error!r}") from error
        found = re.search(r'^vllm:cache_config_info\{.*\bkv_cache_size_tokens="(\d+)"', text, re.M)
        if found is None:
            raise EngineError(f"{where}: its metrics lack it")
        return int(found[1])

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
        priority: int = 0,
        claim: Claim | None = None,
        partial: Generation | None = None,
    ) -> Generation:
        """Sample a continuation; ``partial`` grows meanwhile. ``claim`` is not sent."""
        request = {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop_token_ids": list(stop_token_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "priority": priority,
            "stream": True,
        }
        found = partial or Generation([], [], [], FinishReason.LENGTH)
        reason: str | None = None
        where = f"generate from {len(token_ids)} tokens at {self.url}"
        if self._dead is not None:
            raise EngineError(f"{where}: {self._dead}")
        try:
            async with self._client.stream("POST", "/v1/completions", json=request) as response:
                if response.status_code != httpx.codes.OK:
                    body = (await response.aread())[:500].decode(errors="replace")
                    raise await self._refused(f"{where}: status {response.status_code}: {body}")
                async for line in response.aiter_lines():
                    if len(line) > _MAX_LINE_BYTES:
                        raise EngineError(f"{where}: a line of {len(line)} bytes")
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise await self._refused(f"{where}: {event['error']}")
                        reason = self._take(event, found) or reason
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self._die(f"the server does not answer as it should: {error!r}")
            raise EngineError(f"{where}: {self._dead}") from error
        if reason is None:
            self._die("the server ended a turn in its middle")
            raise EngineError(f"{where}: {self._dead}")
        return Generation(found.token_ids, found.logprobs, found.versions, FinishReason(reason))

    async def push_weights(self, path: Path | str, version: int) -> None:
        """ValueError where nobody has said how."""
        if self._push is None:
            raise ValueError(f"push {path} to {self.url}: it was connected without a way to do so")
        await self._push(str(path), version)
        self.version = version

    async def counts(self) -> dict[str, int]:
        """Nothing: the server has metrics of its own."""
        return {}

    def close(self) -> None:
        """Ends the connections, not the server."""
        self._watching.cancel()
        self._die("the connection was closed")

    async def _refused(self, text: str) -> EngineError:
        """A server whose engine has died answers each turn with an error, and says so of itself."""
        if fault := await _fault(self._client):
            self._die(f"the server is not healthy: {fault}")
        return EngineError(text)

    def _take(self, event: Any, found: Generation) -> str | None:
        """One event of the stream; returns the reason of the end, with the last."""
        choice = event["choices"][0]
        tokens = [int(token) for token in choice["token_ids"]]
        found.token_ids.extend(tokens)
        found.logprobs.extend(float(value) for value in choice["logprobs"]["token_logprobs"])
        found.versions.extend([self.version] * len(tokens))
        reason: str | None = choice["finish_reason"]
        return reason

    async def _watch(self) -> None:
        while self._dead is None:
            await asyncio.sleep(_HEALTH_INTERVAL_S)
            if fault := await _fault(self._client):
                self._die(f"the server is not healthy: {fault}")
        with suppress(httpx.HTTPError):
            await self._client.aclose()

    def _die(self, reason: str) -> None:
        self._dead = self._dead or reason
        self._ended.set()


async def _fault(client: httpx.AsyncClient) -> str | None:
    """What is wrong with a server; None while it is healthy."""
    try:
        answer = await client.get("/health", timeout=_HEALTH_TIMEOUT_S)
    except httpx.HTTPError as error:
        return repr(error)
    return None if answer.is_success else f"status {answer.status_code}"
