"""The FastAPI app that Airflow's API server mounts under `/stateflow`."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException as StarletteHTTPException

from stateflow.errors import StateflowError
from stateflow_ui import actions, pages, routes
from stateflow_ui.catalog import Catalog
from stateflow_ui.connections import read_roots
from stateflow_ui.responses import error_response, response_to

_log = logging.getLogger(__name__)


def create_app(catalog: Catalog | None = None) -> FastAPI:
    # FastAPI's own pages would be routes without a guard.
    app = FastAPI(title="Stateflow", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.catalog = catalog or Catalog(read_roots)
    for router in (routes.router, actions.router, pages.router):
        app.include_router(router)
    app.add_exception_handler(StateflowError, _stateflow_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SQLAlchemyError, _database_error)
    return app


def _stateflow_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StateflowError)
    return response_to(error)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    if error.status_code == 401 and (elsewhere := pages.login(request)) is not None:
        return elsewhere
    answer = error_response(error.status_code, actions.first_sentence(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return error_response(
        422, f"{where}: {first.get('msg', 'not usable')}" if where else str(first.get("msg"))
    )


def _database_error(request: Request, error: Exception) -> Response:
    _log.error("Airflow's database failed", exc_info=error)
    return error_response(503, "Airflow's database did not answer: see the API server's log and try again")
