"""A name in a query that a route does not know is refused, as one in a body is: a filter that is misspelt would find everything."""

from __future__ import annotations

from fastapi import FastAPI

from web.conftest import Caller
from web.hands import problem
from web.walk import filled, names, request, routes

#: Webhooks come from others, whose addresses may have a query of their own; so do the probes of machines.
OPEN = ("/api/v1/automations/events/{event}",)


def test_a_name_that_a_route_does_not_know_is_refused_by_it(site: FastAPI, client: Caller) -> None:  # issue 8
    somebody, walked = client("admin"), 0
    for method, path in routes(site):
        if not path.startswith("/api/v1/") or path in OPEN:
            continue
        least = request(site, method, path)
        least["params"]["stauts"] = "failed"
        answer = somebody.request(method, filled(path, dict.fromkeys(names(path), 1)), **least)
        assert (answer.status_code, answer.json().get("field")) == (422, "stauts"), (method, path, answer.text)
        walked += 1
    assert walked > 100


def test_the_name_that_was_meant_is_named(client: Caller) -> None:
    said = problem(client().get("/api/v1/jobs?stauts=failed"), 422)
    assert said["detail"] == "stauts is not a parameter of this request. Did you mean status?"
    said = problem(client().get("/api/v1/queues?zzz=1"), 422)
    assert said["detail"] == "zzz is not a parameter of this request. Known are: cursor, limit."


def test_webhooks_and_probes_take_whatever_query_their_senders_have(client: Caller) -> None:
    assert client("operator").post("/api/v1/automations/events/sold?hub=1", json={}).status_code == 200
    assert client().get("/livez?x=1").status_code == 200
