"""Keys over REST and on their page. Source: R004-8."""

from __future__ import annotations

from collections.abc import Callable

from starlette.testclient import TestClient

from contract.hands import audit
from duly import Duly
from duly.idempotency import idempotent_task
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
