"""serve-swerex."""

from __future__ import annotations

from typing import Any

import click

from sandboxd.cli.options import fork_options, one_origin, sandbox_options

GRACE_S = 5


@click.command("serve-swerex")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--auth-token",
    envvar="VENUS_SWEREX_TOKEN",
    show_envvar=True,
    required=True,
    help="What clients must send; better in the environment, which nobody else can read.",
)
@click.option("--image", help="Image of the sandboxes.")
@click.option("--template", help="Template of the sandboxes.")
@sandbox_options
@click.pass_obj
def serve_swerex(
    socket: str,
    /,
    host: str,
    port: int,
    auth_token: str,
    image: str | None,
    template: str | None,
    **options: Any,
) -> None:
    """Serve clients of SWE-ReX, in sandboxes that this program makes and removes."""
    one_origin(image, template)
    if not auth_token:
        raise click.BadParameter("it is empty", param_hint="--auth-token")
    # Only here: the rest of the command line needs no server.
    import uvicorn

    from sandboxd.providers.swerex_sandboxes import Sandboxes
    from sandboxd.providers.swerex_server import make_app

    sandboxes = Sandboxes(image, template, socket, fork_options(options))
    app = make_app(sandboxes, auth_token)
    uvicorn.run(app, host=host, port=port, timeout_graceful_shutdown=GRACE_S)
