"""Errors as RFC 9457 has them: ``application/problem+json`` with ``field`` for what the caller can mend."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from duly.accounts.account import Forbidden, Throttled
from duly.kernel.errors import (
    DatabaseError,
    DulyError,
    InvalidArgument,
    InvalidPayload,
    KeyConflict,
    NotFound,
    UsageError,
    WrongState,
)
from duly.kernel.payload import read_json
from duly.kernel.source import InvalidDocument
from duly.kernel.verdict import Refusal
from duly.publishing.preflight import PreflightFailed

MEDIA_TYPE = "application/problem+json"


class Stale(DulyError):
    """A change of something that somebody else has changed meanwhile."""


class Busy(DulyError):
    """Too many acts wait or run."""

    def __init__(self, which: str) -> None:
        super().__init__(f"{which} on many jobs wait or run already; try again when one of them is over.")


class Fault(BaseModel):
    """One thing that is wrong."""

    field: str
    detail: str


class Problem(BaseModel):
    """RFC 9457. ``type`` is about:blank: the status says what kind of problem it is."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = Field(None, description="Which part of the request is wrong, such as `payload.assets[0].url`.")
    errors: list[Fault] | None = Field(None, description="Everything that is wrong, where that is more than one thing.")


class ProblemResponse(JSONResponse):
    media_type = MEDIA_TYPE


def problem(
    status: int, detail: str, field: str | None = None, errors: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
) -> ProblemResponse:  # fmt: skip
    """A response that says what is wrong. ``errors``: (field, detail) of each thing, where there are several."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if field is not None:
        body["field"] = field
    if errors:
        body["errors"] = [{"field": name, "detail": said} for name, said in errors]
    return ProblemResponse(body, status, headers=dict(headers or {}))


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation answers besides success, for its description."""
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": _schema()}}}
        for status in statuses
    }


@cache
def _schema() -> dict[str, Any]:
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    fault = schema.pop("$defs")["Fault"]
    schema["properties"]["errors"]["anyOf"][0]["items"] = fault
    return schema


def of_error(error: DulyError) -> ProblemResponse:
    """What an error of Duly means for a caller over HTTP."""
    if isinstance(error, InvalidDocument):
        faults = [(one.path, f"{one.problem} {one.remedy}".strip()) for one in error.problems]
        return problem(422, str(error.problems[0]), faults[0][0] or None, faults)
    if isinstance(error, PreflightFailed):
        faults = [(f"{place}.{one.field}", one.message) for place, report in error.reports for one in report.errors]
        said = "; ".join(f"{name} {words.rstrip('.')}" for name, words in faults)
        return problem(422, f"{said}. {error.remedy}", faults[0][0], faults)
    if isinstance(error, InvalidArgument):
        return problem(422, str(error).replace(": ", " ", 1), error.field)
    if isinstance(error, NotFound):
        return problem(404, str(error))
    if isinstance(error, Forbidden):
        return problem(403, str(error))
    if isinstance(error, Throttled):
        return problem(429, str(error), headers={"Retry-After": str(max(1, round(error.after)))})
    if isinstance(error, Busy):
        return problem(429, str(error), headers={"Retry-After": "5"})
    if isinstance(error, Stale):
        return problem(412, str(error))
    if isinstance(error, WrongState | KeyConflict):
        return problem(409, str(error))
    if isinstance(error, UsageError):
        return problem(422, str(error))
    if isinstance(error, DatabaseError):
        return problem(503, "The database does not answer as it should.", headers={"Retry-After": "5"})
    return problem(500, "Something went wrong.")


def of_validation(error: RequestValidationError) -> ProblemResponse:
    """What FastAPI found wrong with a request, without what was sent."""
    faults = [(_path(one["loc"]), _said(one)) for one in error.errors()]
    name, said = faults[0]
    return problem(422, f"{name} {said}" if name else said, name or None, faults if len(faults) > 1 else ())


def _path(steps: Sequence[str | int]) -> str:
    """``payload.assets[0].url`` from ("body", "payload", "assets", 0, "url")."""
    out = ""
    for step in steps[1:]:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out


def _said(one: Mapping[str, Any]) -> str:
    cause = (one.get("ctx") or {}).get("error")
    if isinstance(cause, InvalidArgument):
        return f"{cause.problem} {cause.remedy}".strip()
    text = str(cause or one["msg"])
    return f"cannot be used: {text[:1].lower()}{text[1:].rstrip('.')}."


class _Checked(Request):
    """A request whose JSON is refused where a reader would change it in silence (``read_json``)."""

    #: Why its JSON is refused.
    refused: InvalidPayload | None = None

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = read_json(body, "")
            except InvalidPayload as error:
                self.refused = error
                raise
            except InvalidArgument:
                self._json = json.loads(body)  # raises what FastAPI expects of a body that is no JSON
        return self._json


class ProblemRoute(APIRoute):
    """A route whose errors are problems, in whichever application its router stands."""

    #: Is a name in the query that the route does not know refused, too?
    strict = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        known: set[str] | None = None

        async def handle(request: Request) -> Response:
            nonlocal known
            try:
                if self.strict and request.scope["query_string"]:
                    known = known if known is not None else _query_names(self.dependant)
                    _check_query(request, known)
                checked = _Checked(request.scope, request.receive)
                try:
                    return await inner(checked)
                except HTTPException:  # FastAPI answers any error in reading the body with 400 and no reason
                    if checked.refused is None:
                        raise
                    return of_error(checked.refused)
            except RequestValidationError as error:
                return of_validation(error)
            except DulyError as error:
                return of_error(error)
            except Refusal as error:  # a connector that cannot even show it
                return problem(422, error.verdict.reason)

        return handle


class StrictRoute(ProblemRoute):
    """The same, and a name in its query that it does not know is refused, as one in its body is: a filter that is misspelt would find everything."""

    strict = True


def _query_names(dependant: Any) -> set[str]:
    found = {field.alias for field in dependant.query_params}
    return found.union(*(_query_names(one) for one in dependant.dependencies))


def _check_query(request: Request, known: set[str]) -> None:
    """Raises InvalidArgument."""
    for name in request.query_params:
        if name not in known:
            near = get_close_matches(name, known, 1)
            takes = f"Known are: {', '.join(sorted(known))}." if known else "There are none here."
            raise InvalidArgument(
                name, "is not a parameter of this request.", f"Did you mean {near[0]}?" if near else takes
            )
