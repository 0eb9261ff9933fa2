"""Every route of an application, and requests that fit their descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

SAFE = {"GET", "HEAD", "OPTIONS"}


def routes(site: FastAPI) -> Iterator[tuple[str, str]]:
    """(method, path) of each, as ``("POST", "/api/v1/jobs/{id}/cancel")``: those of the API, of the pages, and of what is added later."""
    for route in iter_route_contexts(site.routes):
        for method in sorted(route.methods or ()):
            if method not in ("HEAD", "OPTIONS"):
                yield method, re.sub(r":\w+}", "}", route.path)


def names(path: str) -> list[str]:
    """The parameters of a path."""
    return re.findall(r"{(\w+)}", path)


def filled(path: str, values: Mapping[str, Any]) -> str:
    return re.sub(r"{(\w+)}", lambda found: str(values[found[1]]), path)


def request(site: FastAPI, method: str, path: str) -> dict[str, Any]:
    """The least that the description asks for: ``json`` and ``params`` of a request."""
    described = site.openapi()
    operation = described["paths"].get(path, {}).get(method.lower(), {})
    asked = [p for p in operation.get("parameters", ()) if p["in"] == "query" and p.get("required")]
    out: dict[str, Any] = {"params": {p["name"]: _least(described, p["schema"]) for p in asked}}
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        out["json" if kind == "application/json" else "data"] = _least(described, content["schema"])
    return out


def _least(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _least(described, described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _least(described, schema[several][0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            return {name: _least(described, schema["properties"][name]) for name in wanted}
        case "array":
            return [_least(described, schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            if schema.get("format") == "date-time":
                return "2026-03-28T12:00:00Z"
            return "x" * max(1, schema.get("minLength", 1))
        case _:
            return None
