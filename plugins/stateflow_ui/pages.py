"""The pages themselves: files that come with the package, for those who may read."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from stateflow_ui.access import READING
from stateflow_ui.settings import base_path

STATIC = Path(__file__).parent / "static"
PREFIX = "/stateflow"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # Asked for again each time, and sent again only when it is another: no page of one version with scripts of another.
    "Cache-Control": "private, no-cache",
}
_files = StaticFiles(directory=STATIC, check_dir=False)

router = APIRouter(dependencies=READING, include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    return await _file(request, "index.html")


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    return await _file(request, path)


async def _file(request: Request, path: str) -> Response:
    try:
        response = await _files.get_response(path, request.scope)
    except Exception as error:
        raise HTTPException(404, f"there is no page {path!r} here") from error
    response.headers.update(_HEADERS)
    return response


def login(request: Request) -> Response | None:
    """Where a person who opened a page's address without being signed in is sent; None for a program."""
    opens = request.headers.get("sec-fetch-dest", "document") == "document"
    page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if not (opens and page and request.url.path.endswith(f"{PREFIX}/")):
        return None
    query = f"?{request.url.query}" if request.url.query else ""
    target = quote(f"{base_path()}{PREFIX}/{query}", safe="")
    return RedirectResponse(f"{base_path()}/api/v2/auth/login?next={target}", 302)
