"""Keys over REST and on their page. Source: R004-8."""

from __future__ import annotations

from collections.abc import Callable

from starlette.testclient import TestClient

from contract.hands import audit
from duly import Duly
from duly.idempotency import idempotent_task
from duly.jobs.enqueue import NewJob
from duly.testing import drain
from web.hands import problem

PATH = "/api/v1/keys"


def test_operators_forget_a_key_and_viewers_look(app: Duly, client: Callable[..., TestClient]) -> None:  # F9
    ran: list[str] = []

    @app.task("print")
    @idempotent_task
    def print_(to: str) -> str:
        ran.append(to)
        return to

    def run(to: str, tenant: str = "default") -> None:
        print_.using(tenant=tenant).enqueue(to)
        drain(app)

    for n in range(3):
        run(f"secret-{n}")
    run("theirs", "acme")
    operator, viewer = client("operator"), client("viewer")
    said = viewer.get(f"{PATH}?limit=2").json()
    rest = viewer.get(PATH, params={"limit": 2, "cursor": said["next"]}).json()
    assert ([one["tenant"] for one in said["keys"] + rest["keys"]], rest["next"]) == (["acme", *["default"] * 3], None)
    assert "secret" not in viewer.get(PATH).text
    key = said["keys"][1]["key"]
    assert viewer.get(PATH, params={"state": "failed"}).json()["keys"] == []
    problem(viewer.post(f"{PATH}/{key}/forget", json={"reason": "no"}), 403)
    problem(operator.post(f"{PATH}/{key}/forget", json={}), 422)
    problem(operator.post(f"{PATH}/{key}/forget", json={"reason": "r"}, headers={"If-Match": '"old"'}), 412)
    problem(client("operator", tenant="acme").post(f"{PATH}/{key}/forget", json={"reason": "r"}), 404)
    tag = operator.get(f"{PATH}/{key}").headers["ETag"]
    gone = operator.post(f"{PATH}/{key}/forget", json={"reason": "out of paper"}, headers={"If-Match": tag})
    assert (gone.status_code, gone.json()["state"]) == (200, "succeeded")
    problem(operator.get(f"{PATH}/{key}"), 404)
    assert [row["meta"]["reason"] for row in audit(app, key)] == ["out of paper"]
    for n in range(3):
        run(f"secret-{n}")
    assert len(ran) == 5, "one ran again"


def test_a_key_is_seen_and_forgotten_on_its_page(app: Duly, client: Callable[..., TestClient]) -> None:  # F9
    @app.task("print")
    @idempotent_task
    def print_(to: str) -> str:
        return to

    print_.enqueue("secret")
    drain(app)
    (key,), _ = app.keys.find()
    operator, viewer = client("operator"), client("viewer")
    page = viewer.get("/keys").text
    assert key.key in page
    assert "secret" not in page
    assert "/keys/forget" not in page
    assert "/keys/forget" in operator.get("/keys?state=succeeded").text
    assert "No key fits" in operator.get("/keys?quiet=2h").text
    form = {"key": key.key, "tenant": "default", "token": str(key.token), "back": "/keys", "reason": "out of paper"}
    assert viewer.post("/keys/forget", data=form).status_code == 403
    said = operator.post("/keys/forget", data=form)
    assert (said.status_code, "is forgotten" in said.text) == (200, True)
    assert app.keys.find() == ([], None)
    assert [row["meta"]["reason"] for row in audit(app, key.key)] == ["out of paper"]


def test_operators_forget_keys_of_jobs_over_rest_and_on_their_page(
    app: Duly, client: Callable[..., TestClient]
) -> None:  # D2
    path = "/api/v1/keys/jobs"

    @app.task("print")
    def print_(to: str) -> None: ...

    def put(key: str, tenant: str = "default") -> int:
        return int(print_.using(key=key, tenant=tenant).enqueue("Ann").job.id)

    first, _, theirs = put("a"), put("b"), put("c", "acme")
    app.engine.maker.make(NewJob("default", "ig", "PUBLISH", "{}", 4, key="post"))
    operator, viewer, acme = client("operator"), client("viewer"), client("operator", tenant="acme")
    page = viewer.get(path, params={"limit": 2}).json()
    rest = viewer.get(path, params={"limit": 2, "cursor": page["next"]}).json()
    assert [one["key"] for one in page["keys"] + rest["keys"]] == ["post", "c", "b", "a"]
    assert [one["job_id"] for one in acme.get(path).json()["keys"]] == [theirs]
    body = {"key": "a", "reason": "the wrong amount"}
    problem(viewer.post(f"{path}/forget", json=body), 403)
    problem(acme.post(f"{path}/forget", json=body), 404)
    problem(operator.post(f"{path}/forget", json={"key": "a"}), 422)
    problem(operator.post(f"{path}/forget", json=body), 409)
    problem(operator.post(f"{path}/forget", json=body | {"force": True, "job_id": 99}), 409)
    said = problem(operator.post(f"{path}/forget", json=body | {"key": "post", "queue": "ig", "force": True}), 422)
    assert "duly keys forget --jobs" in str(said)
    gone = operator.post(f"{path}/forget", json=body | {"force": True, "job_id": first})
    assert (gone.status_code, gone.json()["job_id"], gone.json()["status"]) == (200, first, "queued")

    seen = viewer.get("/keys/jobs").text
    assert ("/keys/jobs/forget" in seen, ">b<" in seen, ">post<" in seen) == (False, True, True)
    assert operator.get("/keys/jobs?key=post").text.count("/keys/jobs/forget") == 0
    assert "/keys/jobs/forget" in operator.get("/keys/jobs?queue=default&task=print").text
    assert "No key fits" in operator.get("/keys/jobs?tenant=nobody").text
    form = {"key": "b", "on": "default", "tenant": "default", "job": str(first + 1), "force": "yes", "back": "/keys/jobs", "reason": "r"}  # fmt: skip
    assert viewer.post("/keys/jobs/forget", data=form).status_code == 403
    refused = operator.post("/keys/jobs/forget", data=form | {"key": "post", "on": "ig"}).text
    assert "duly keys forget --jobs" in refused
    done = operator.post("/keys/jobs/forget", data=form)
    assert (done.status_code, "is forgotten" in done.text) == (200, True)
    assert [one.key for one in app.keys.jobs.find()[0]] == ["post", "c"]
