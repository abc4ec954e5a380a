"""Client of sandboxd: `Sandbox` for threads, `AsyncSandbox` for asyncio.

    with Sandbox.create(timeout=300) as sandbox:
        print(sandbox.commands.run("uname -a").stdout)

Needs nothing of the daemon but its socket; importing it loads neither FastAPI nor torch.
"""

from sandboxd.client._async_commands import AsyncCommands
from sandboxd.client._async_daemon import AsyncDaemon
from sandboxd.client._async_files import AsyncFiles
from sandboxd.client._async_handle import AsyncCommandHandle
from sandboxd.client._async_lease import AsyncLease
from sandboxd.client._async_sandbox import AsyncSandbox, AsyncTemplate
from sandboxd.client._port_forward import AsyncPortForward, PortForward
from sandboxd.client._sync_commands import Commands
from sandboxd.client._sync_daemon import Daemon
from sandboxd.client._sync_files import Files
from sandboxd.client._sync_handle import CommandHandle
from sandboxd.client._sync_lease import Lease
from sandboxd.client._sync_sandbox import Sandbox, Template
from sandboxd.client.errors import (
    CommandExitError,
    CommandTimeout,
    ConnectionLost,
    DaemonUnavailable,
)
from sandboxd.client.types import (
    BuildInfo,
    CommandInfo,
    CommandResult,
    DaemonInfo,
    Exit,
    FileEntry,
    FileListing,
    FileType,
    ForkOptions,
    ImageInfo,
    LeaseInfo,
    Output,
    PtySize,
    SandboxEvent,
    SandboxInfo,
    SandboxLimits,
    SandboxMetrics,
    SandboxState,
    SandboxStats,
    TemplateInfo,
    WatchEvent,
    WatchKind,
)
from sandboxd.client.warm_python import warm_python
from sandboxd.errors import VenusError
from sandboxd.protocol import ExitReason

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncDaemon",
    "AsyncFiles",
    "AsyncLease",
    "AsyncPortForward",
    "AsyncSandbox",
    "AsyncTemplate",
    "BuildInfo",
    "CommandExitError",
    "CommandHandle",
    "CommandInfo",
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
    "ForkOptions",
    "ImageInfo",
    "Lease",
    "LeaseInfo",
    "Output",
    "PortForward",
    "PtySize",
    "Sandbox",
    "SandboxEvent",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxMetrics",
    "SandboxState",
    "SandboxStats",
    "Template",
    "TemplateInfo",
    "VenusError",
    "WatchEvent",
    "WatchKind",
    "warm_python",
]
