"""A vLLM engine in a process of its own, behind a small asynchronous interface.

Neither the trainer nor the event loop competes with it for the interpreter. Weights are pushed
between two of its steps: unfinished requests have their cached attention state dropped and
computed anew, and go on with the new weights; each token carries the version that produced it.

Does not handle: seeds per request (on CPU, vLLM 0.32 dies of them). Sampling is seeded once,
by the configuration; the order of requests in a batch still decides which numbers each one gets.
"""

import asyncio
import itertools
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from venusrl.engine.engine_process import EngineConfig, obituary, spawn
from venusrl.engine.generation import (
    EngineError,
    FinishReason,
    Generation,
    Probe,
    WeightsError,
    token_list,
)
from venusrl.engine.liveness import wait_for_silence
from venusrl.engine.shared_table import Claim
from venusrl.engine.wire import MAX_LINE_BYTES, READY_ID, decode, encode

_WEIGHTS_FILE = "model.safetensors"
_CLOSE_TIMEOUT_S = 10.0


class VllmEngine:
    """A running engine. Made by ``start``; ``close`` ends its process."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        config: EngineConfig,
    ) -> None:
        self._process = process
        self._writer = writer
        self._config = config
        self._numbers = itertools.count(READY_ID + 1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._partial: dict[int, Generation] = {}
        self._dead: str | None = None
        self._ended = asyncio.Event()
        self._reading = asyncio.create_task(self._read(reader))
        self._watching: asyncio.Task[None] | None = None
        self._push_lock = asyncio.Lock()
        self.version = 0
        self.tokens_generated = 0
        self._under_way = 0
        self._busy_since = 0.0
        self._busy_before_s = 0.0

    @classmethod
    async def start(cls, model_dir: Path | str, config: EngineConfig) -> "VllmEngine":
        """Load ``model_dir`` as version 0. Takes about ten seconds."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = spawn(theirs, str(model_dir), config)
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
        engine = cls(process, reader, writer, config)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await engine._answer(READY_ID)
            engine._watching = asyncio.create_task(engine._watch())
        except TimeoutError:
            engine.close()
            raise EngineError(
                f"start the engine on {model_dir}: not ready after {config.start_timeout_s:g} s"
            ) from None
        except EngineError as error:
            engine.close()
            raise EngineError(f"start the engine on {model_dir}: {error}") from error
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> str | None:
        """Why the engine is of no more use; None while it is."""
        return self._dead

    async def ended(self) -> None:
        """Returns once it is dead."""
        await self._ended.wait()

    @property
    def busy_s(self) -> float:
        """How long, in all, at least one request has been under way."""
        now = time.monotonic() - self._busy_since if self._under_way else 0.0
        return self._busy_before_s + now

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
        """Sample a continuation; temperature 0 is greedy.

        Lower ``priority`` runs first. Our own scheduler goes by ``claim`` instead. ``partial``
        grows while the turn is generated, by several tokens at once: what is left of it if the
        engine dies.
        """
        result = await self._generate(
            token_ids,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            temperature=temperature,
            priority=priority,
            claim=claim,
            partial=partial,
        )
        self.tokens_generated += len(result["token_ids"])
        return Generation(
            token_ids=result["token_ids"],
            logprobs=result["logprobs"],
            versions=result["versions"],
            finish_reason=FinishReason(result["finish_reason"]),
        )

    async def probe(
        self, token_ids: Sequence[int], *, max_tokens: int, chosen: Sequence[int] = ()
    ) -> Probe:
        """Logprobs of the given tokens (prefill) and of a sampled continuation (decoding).

        Of the given tokens, those whose place in ``chosen`` is 1 are to be compared.
        """
        result = await self._generate(token_ids, max_tokens=max_tokens, prompt_logprobs=True)
        given = [bool(mark) for mark in chosen] or [False] * len(token_ids)
        return Probe(
            [*token_ids, *result["token_ids"]],
            [0.0, *result["prompt_logprobs"], *result["logprobs"]],
            [*given, *[True] * len(result["token_ids"])],
        )

    async def push_weights(self, path: Path | str, version: int) -> None:
        """Replace the weights by those in ``path``: a safetensors file or a directory with one.

        Safe at any time; requests under way go on afterwards with the new weights.

        Raises:
            WeightsError: they are refused. Where the engine had begun to take them it is dead.
            EngineError: it died, or took too long; it is dead.
        """
        file = _weights_file(Path(path))
        what = f"push {file} as version {version}"
        async with self._push_lock:
            if version <= self.version:
                raise WeightsError(f"{what}: it is not newer than {self.version}")
            if not file.is_file():
                raise WeightsError(f"{what}: there is no such file")
            try:
                async with asyncio.timeout(self._config.push_timeout_s):
                    await self._request({"op": "push", "path": str(file), "version": version})
            except (EngineError, TimeoutError) as error:
                refused = isinstance(error, EngineError) and self._dead is None
                # The weights may be half replaced; nobody may generate with them.
                self.close()
                kind = WeightsError if refused else EngineError
                raise kind(f"{what}: {str(error) or repr(error)}") from error
            self.version = version

    async def counts(self) -> dict[str, int]:
        """What the engine's scheduler has counted since it started (counting.py, scheduler.py)."""
        return await self._request({"op": "counts"})

    async def steps(self) -> list[list[float]]:
        """What each step since the last call computed and took (counting.StepLog), where the
        configuration asks for it."""
        rows: list[list[float]] = (await self._request({"op": "steps"}))["rows"]
        return rows

    def close(self) -> None:
        """End the engine's process. A second call does nothing."""
        self._fail_all("the engine was closed")
        self._reading.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._writer.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    async def _generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int] = (),
        temperature: float = 1.0,
        prompt_logprobs: bool = False,
        priority: int = 0,
        claim: Claim | None = None,
        partial: Generation | None = None,
    ) -> dict[str, Any]:
        if self._under_way == 0:
            self._busy_since = time.monotonic()
        self._under_way += 1
        try:
            return await self._request(
                {
                    "op": "generate",
                    "partial": partial is not None,
                    "token_ids": token_list(token_ids),
                    "max_tokens": max_tokens,
                    "stop_token_ids": token_list(stop_token_ids),
                    "temperature": temperature,
                    "prompt_logprobs": prompt_logprobs,
                    "priority": priority,
                    "claim": claim and (claim.slot, claim.trajectory),
                },
                partial,
            )
        except EngineError as error:
            raise EngineError(f"generate from {len(token_ids)} tokens: {error}") from error
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._busy_before_s += time.monotonic() - self._busy_since

    async def _request(
        self, request: Mapping[str, Any], partial: Generation | None = None
    ) -> dict[str, Any]:
        number = next(self._numbers)
        if partial is not None:
            self._partial[number] = partial
        answer = self._answer(number)
        try:
            self._send({"id": number, **request})
            return await answer
        except asyncio.CancelledError:
            self._send({"id": number, "op": "abort"})
            raise
        finally:
            self._waiting.pop(number, None)
            self._partial.pop(number, None)

    def _answer(self, number: int) -> "asyncio.Future[dict[str, Any]]":
        if self._dead is not None:
            raise EngineError(self._dead)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return future

    def _send(self, message: dict[str, Any]) -> None:
        # Not drained: what is under way is bounded by the callers, and so is the buffer.
        with suppress(ConnectionError):
            self._writer.write(encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand each answer to whom it is for, until the engine ends."""
        try:
            while line := await reader.readline():
                message = decode(line)
                if "partial" in message:
                    self._grow(message["id"], message["partial"])
                    continue
                future = self._waiting.get(message["id"])
                if future is None or future.done():
                    continue
                if "error" in message:
                    future.set_exception(EngineError(str(message["error"])))
                else:
                    future.set_result(message["result"])
            self._fail_all(obituary(self._process, self._config.log_path))
        except (OSError, ValueError) as error:
            self._fail_all(f"the connection to the engine failed: {error!r}")

    async def _watch(self) -> None:
        """Kills the process once it hangs: for whoever waits it is dead then."""

        async def ask() -> None:
            # A push has a bound of its own, and nothing is answered meanwhile.
            if not self._push_lock.locked():
                async with self._push_lock:
                    await self.counts()

        timeout_s = self._config.answer_timeout_s
        with suppress(EngineError):
            await wait_for_silence(ask, timeout_s)
            self._process.kill()
            self._fail_all(f"the engine hangs: it has not answered for {timeout_s:g} s")

    def _grow(self, number: int, more: Mapping[str, Any]) -> None:
        partial = self._partial.get(number)
        if partial is not None:
            partial.token_ids.extend(more["token_ids"])
            partial.logprobs.extend(more["logprobs"])
            partial.versions.extend(more["versions"])

    def _fail_all(self, reason: str) -> None:
        if self._dead is None:
            self._dead = reason
        self._ended.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineError(reason))
                # Whoever still waits sees it; nobody has to.
                future.exception()


def _weights_file(path: Path) -> Path:
    return path / _WEIGHTS_FILE if path.is_dir() else path
