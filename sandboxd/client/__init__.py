"""Client of sandboxd: `Sandbox` for threads, `AsyncSandbox` for asyncio.

    with Sandbox.create(timeout=300) as sandbox:
        print(sandbox.commands.run("uname -a").stdout)

Needs nothing of the daemon but its socket; importing it loads neither FastAPI nor torch.
"""

from sandboxd.client._async_commands import AsyncCommandHandle, AsyncCommands
from sandboxd.client._async_files import AsyncFiles
from sandboxd.client._async_sandbox import AsyncDaemon, AsyncSandbox
from sandboxd.client._sync_commands import CommandHandle, Commands
from sandboxd.client._sync_files import Files
from sandboxd.client._sync_sandbox import Daemon, Sandbox
from sandboxd.client.errors import (
    CommandExitError,
    CommandTimeout,
    ConnectionLost,
    DaemonUnavailable,
)
from sandboxd.client.types import (
    CommandResult,
    DaemonInfo,
    Exit,
    FileEntry,
    FileListing,
    FileType,
    ImageInfo,
    Output,
    SandboxInfo,
    SandboxLimits,
    SandboxMetrics,
    SandboxState,
)
from sandboxd.errors import VenusError
from sandboxd.protocol import ExitReason

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncDaemon",
    "AsyncFiles",
    "AsyncSandbox",
    "CommandExitError",
    "CommandHandle",
    "CommandResult",
    "CommandTimeout",
    "Commands",
    "ConnectionLost",
    "Daemon",
    "DaemonInfo",
    "DaemonUnavailable",
    "Exit",
    "ExitReason",
    "FileEntry",
    "FileListing",
    "FileType",
    "Files",
    "ImageInfo",
    "Output",
    "Sandbox",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxMetrics",
    "SandboxState",
    "VenusError",
]
