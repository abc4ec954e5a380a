"""An environment of mini-swe-agent, which finds it by the name of the class:
`environment_class: sandboxd.providers.mini_swe_agent.VenusEnvironment`.
"""

from __future__ import annotations

import logging
import os
import platform
import weakref
from typing import Any, Self

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict

from sandboxd.client import CommandResult, CommandTimeout, ExitReason, Sandbox, VenusError
from sandboxd.errors import SandboxGone
from sandboxd.providers.translation import ended_with_sandbox, is_unavailable

logger = logging.getLogger("minisweagent.environment")

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# The shell merges both streams, so that they keep their order.
_MERGED = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")


class VenusEnvironmentConfig(BaseModel):
    """Times in seconds."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    template: str | None = None
    cwd: str = ""
    """Directory of commands; empty: the image's or template's, else the user's home."""
    user: str | None = None
    env: dict[str, str] = {}
    forward_env: list[str] = []
    """Variables of this process that commands get, where `env` does not name them."""
    timeout: int = 30
    """Of a command."""
    interpreter: list[str] = ["bash", "-lc"]
    """What runs a command, which is its last argument."""
    sandbox_timeout: float | None = 7200
    """Time to live of the sandbox."""
    memory_bytes: int | None = None
    pids: int | None = None
    cpu_cores: float | None = None
    disk_bytes: int | None = None
    max_output_bytes: int = 16 << 20
    socket: str | None = None


class VenusEnvironment:
    """One sandbox, which goes with `cleanup`, with this object, or with the program."""

    def __init__(
        self, *, config_class: type[VenusEnvironmentConfig] = VenusEnvironmentConfig, **kwargs: Any
    ) -> None:
        self.config = config_class(**kwargs)
        self._sandbox = Sandbox.create(
            self.config.image,
            template=self.config.template,
            socket=self.config.socket,
            timeout=self.config.sandbox_timeout,
            user=self.config.user,
            memory_bytes=self.config.memory_bytes,
            pids=self.config.pids,
            cpu_cores=self.config.cpu_cores,
            disk_bytes=self.config.disk_bytes,
            metadata={"made-by": "mini-swe-agent"},
        )
        # mini-swe-agent itself never cleans up.
        self.cleanup = weakref.finalize(self, _remove, self._sandbox)

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.sandbox_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cleanup()

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Runs the action's command; everything that it started is killed at the timeout.

        A sandbox or daemon that is gone raises, because no further command could do better.
        """
        command = str(action.get("command", ""))
        forwarded = {
            name: os.environ[name] for name in self.config.forward_env if name in os.environ
        }
        try:
            result = self._sandbox.commands.run(
                [*_MERGED, *self.config.interpreter, command],
                envs=forwarded | self.config.env,
                cwd=cwd or self.config.cwd or None,
                timeout=timeout or self.config.timeout,
                max_output_bytes=self.config.max_output_bytes,
                check=False,
            )
        except VenusError as error:
            if is_unavailable(error):
                raise
            return self._failed(error, b"")
        if ended_with_sandbox(result.exit):
            raise SandboxGone(f"it ended under a command ({result.reason})", object=self.sandbox_id)
        if result.reason is ExitReason.TIMEOUT:
            late = CommandTimeout(command, timeout or self.config.timeout, result)
            return self._failed(late, result.stdout_bytes)
        output = {
            "output": self._text(result),
            "returncode": result.exit_code,
            "exception_info": "killed: out of memory" if result.reason is ExitReason.OOM else "",
        }
        _check_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        merged: dict[str, Any] = recursive_merge(
            self.config.model_dump(), platform.uname()._asdict(), kwargs
        )
        return merged

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {
            "environment": self.config.model_dump(mode="json"),
            "environment_type": kind,
        }
        return {"info": {"config": config}}

    def _text(self, result: CommandResult) -> str:
        cut = f"\n[cut after {self.config.max_output_bytes} bytes]\n" if result.truncated else ""
        return result.stdout + cut

    @staticmethod
    def _failed(error: Exception, output: bytes) -> dict[str, Any]:
        """As mini-swe-agent's own environments tell it."""
        return {
            "output": output.decode("utf-8", "replace"),
            "returncode": -1,
            "exception_info": f"An error occurred while executing the command: {error}",
            "extra": {"exception_type": type(error).__name__, "exception": str(error)},
        }


def _check_submitted(output: dict[str, Any]) -> None:
    first, _, rest = str(output["output"]).lstrip().partition("\n")
    if first.strip() == _SUBMIT and output["returncode"] == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})


def _remove(sandbox: Sandbox) -> None:
    try:
        sandbox.kill()
    except VenusError as error:
        logger.warning("sandbox %s was not removed: %s", sandbox.sandbox_id, error)
    finally:
        sandbox.close()
