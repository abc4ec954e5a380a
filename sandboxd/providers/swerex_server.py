"""SWE-ReX's server, whose commands run in sandboxes: its `RemoteRuntime` works with it unchanged.

The first use makes a sandbox, `close` removes it, and so does the end of the server. A path below
the server's address, `http://HOST:PORT/NAME`, is a sandbox of its own.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, cast

from fastapi import APIRouter, FastAPI, File, Form, HTTPException, Request, UploadFile
from fastapi.responses import JSONResponse
from starlette.responses import Response

from sandboxd.client import VenusError
from sandboxd.providers import swerex_models as models
from sandboxd.providers.swerex_errors import STATUS, transfer
from sandboxd.providers.swerex_sandbox import SwerexSandbox
from sandboxd.providers.swerex_sandboxes import Sandboxes

MAX_BODY_BYTES = 256 << 20
MAX_UPLOAD_BYTES = 4 << 30
"""An upload lies in a file of the server's, until the sandbox has it."""


def make_app(sandboxes: Sandboxes, auth_token: str) -> FastAPI:
    """The routes. Who does not send the token as X-API-Key is refused."""
    if not auth_token:
        raise ValueError("a token is needed: whoever reaches the server may run commands")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await sandboxes.open()
        yield
        await sandboxes.close_all()

    app = FastAPI(title="SWE-ReX on sandboxd", lifespan=lifespan, docs_url=None, openapi_url=None)
    app.state.sandboxes = sandboxes

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        given = request.headers.get("X-API-Key", "")
        if not hmac.compare_digest(given.encode(), auth_token.encode()):
            return JSONResponse({"detail": "Invalid API Key"}, 401)
        bound = MAX_UPLOAD_BYTES if request.url.path.endswith("/upload") else MAX_BODY_BYTES
        # What does not say its size has none.
        chunked = "Transfer-Encoding" in request.headers
        if chunked or int(request.headers.get("Content-Length", 0)) > bound:
            return JSONResponse({"detail": f"a body must say its size, at most {bound} bytes"}, 413)
        try:
            return await call_next(request)
        except Exception as error:
            return JSONResponse(transfer(error), STATUS)

    for prefix in ("", "/{name}"):
        app.include_router(router, prefix=prefix)
    return app


def _name(request: Request) -> str:
    name = str(request.path_params.get("name", "default"))
    if len(name) > 128:
        raise HTTPException(404, "the name is too long")
    return name


def _sandboxes(request: Request) -> Sandboxes:
    return cast(Sandboxes, request.app.state.sandboxes)


async def _sandbox(request: Request) -> SwerexSandbox:
    """Not a dependency: those come before the body is checked, and a wrong one makes no sandbox."""
    return await _sandboxes(request).get(_name(request))


router = APIRouter()


@router.get("/is_alive")
async def is_alive(request: Request) -> dict[str, Any]:
    try:
        await _sandboxes(request).check(_name(request))
    except VenusError as error:
        return {"is_alive": False, "message": str(error)}
    return {"is_alive": True, "message": ""}


@router.post("/create_session")
async def create_session(body: models.CreateSession, request: Request) -> dict[str, str]:
    return {"output": await (await _sandbox(request)).create_session(body), "session_type": "bash"}


@router.post("/run_in_session")
async def run_in_session(body: models.Action, request: Request) -> models.Observation:
    return await (await _sandbox(request)).run_in_session(body)


@router.post("/close_session")
async def close_session(body: models.CloseSession, request: Request) -> dict[str, str]:
    await (await _sandbox(request)).close_session(body.session)
    return {"session_type": "bash"}


@router.post("/execute")
async def execute(body: models.Command, request: Request) -> models.CommandResponse:
    return await (await _sandbox(request)).execute(body)


@router.post("/read_file")
async def read_file(body: models.ReadFile, request: Request) -> dict[str, str]:
    return {"content": await (await _sandbox(request)).read_file(body)}


@router.post("/write_file")
async def write_file(body: models.WriteFile, request: Request) -> dict[str, str]:
    await (await _sandbox(request)).write_file(body)
    return {}


@router.post("/upload")
async def upload(
    request: Request,
    file: Annotated[UploadFile, File()],
    target_path: Annotated[str, Form()],
    unzip: Annotated[bool, Form()] = False,
) -> dict[str, str]:
    sandbox = await _sandbox(request)
    await (sandbox.upload_zip if unzip else sandbox.upload)(file.file, target_path)
    return {}


@router.post("/close")
async def close(request: Request) -> dict[str, str]:
    await _sandboxes(request).close(_name(request))
    return {}
