"""Who belongs to a tenant and asks for a thing of another one is told that it is about the tenant."""

from __future__ import annotations

import html
from collections.abc import Callable

import pytest

from web.dashboard.conftest import Person


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/rounds/1?tenant=acme", "round"),
        ("/rounds/groups/1?tenant=acme", "group"),
        ("/schedules/show?name=nightly&tenant=acme", "schedule"),
    ],
)
def test_a_thing_of_another_tenant_is_refused_by_the_name_of_the_tenant(
    person: Callable[..., Person], path: str, what: str
) -> None:
    answer = person("viewer", tenant="default").get(path)
    assert answer.status_code == 404
    told = f"there is no {what} of the tenant 'acme' that you may see: you belong to 'default'."
    assert told in html.unescape(answer.text)
    assert f"there is no {what} acme" not in answer.text
