"""Write `src/duly/client/_calls.py` from the description of the API: `python docs/make_client.py` (``--check`` only compares)."""

from __future__ import annotations

import keyword
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src" / "duly" / "client" / "_calls.py"
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
HEAD = '''"""The calls of the REST API. Written by `python docs/make_client.py` from its description; do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict, Unpack

Send = Callable[..., Any]
'''


def described() -> dict[str, Any]:
    from duly import Duly
    from duly.web.app import create

    with TemporaryDirectory() as folder:
        app = Duly(f"sqlite:///{folder}/duly.db")
        try:
            found: dict[str, Any] = create(app).openapi()
        finally:
            app.close()
    return found


def named(schema: str) -> str:
    """`duly__web__api__jobs__Page` is JobsPage: two files have a page each."""
    parts = schema.split("__")
    return parts[-1] if len(parts) == 1 else f"{parts[-2].title().replace('_', '')}{parts[-1]}"


def kind(schema: Mapping[str, Any]) -> str:
    """A schema as a type."""
    if "$ref" in schema:
        return named(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema or "enum" in schema:
        return f"Literal[{', '.join(repr(one) for one in schema.get('enum', [schema.get('const')]))}]"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(kind(one) for one in schema[several]))
    if schema.get("type") == "array":
        return f"list[{kind(schema.get('items', {}))}]"
    if schema.get("type") == "object":
        return "dict[str, Any]"
    return SIMPLE.get(str(schema.get("type")), "Any")


def typed_dicts(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items(), key=lambda one: named(one[0])):
        fields = schema.get("properties", {})
        required = schema.get("required", ())
        lines = [
            (field, kind(one) if field in required else f"NotRequired[{kind(one)}]") for field, one in fields.items()
        ]
        if any(keyword.iskeyword(field) or not field.isidentifier() for field in fields):
            body = "".join(f'\n    "{field}": "{said}",' for field, said in lines)
            yield f'{named(name)} = TypedDict("{named(name)}", {{{body}\n}})\n'
            continue
        doc = plain(schema.get("description", ""))
        about = f'    """{doc}"""\n\n' if doc else ""
        yield f"class {named(name)}(TypedDict):\n{about}" + (
            "".join(f"    {field}: {said}\n" for field, said in lines) or "    pass\n"
        )


def plain(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")


def operations(paths: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, str, dict[str, Any]]]]:
    """By group: name → (method, path, operation). What stands alone in its part of the path is in the group without a name."""
    found: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            if any("event-stream" in one for one in operation["responses"].get("200", {}).get("content", {})):
                continue  # streams are listened to by hand
            group = "publications" if path.startswith("/fp-publisher") else path.removeprefix("/api/v1").split("/")[1]
            name = re.split(r"_(?:api_v1|fp_publisher_v1|livez|readyz)_", operation["operationId"])[0]
            found.setdefault(group, []).append((name, method.upper(), path, operation))
    out: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {}
    for group, several in found.items():
        if len(several) == 1:
            out.setdefault("", {})[group] = several[0][1:]
            continue
        singular = group.removesuffix("s")
        for name, method, path, operation in several:
            bare = name.removeprefix("duly_").removesuffix(f"_{singular}")
            bare = "find" if bare in (group, "jobs") else "show" if bare == singular else bare
            assert bare not in out.setdefault(group, {}), f"two operations of {group} are called {bare}"
            out[group][bare] = (method, path, operation)
    return out


def call(name: str, method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """One operation as a method."""
    parameters = operation.get("parameters", ())
    inside = [(p["name"], kind(p["schema"])) for p in parameters if p["in"] == "path"]
    behind = [(p["name"], kind(p["schema"]), p.get("required", False)) for p in parameters if p["in"] == "query"]
    headers = [p["name"] for p in parameters if p["in"] == "header"]
    if method == "POST" and "idempotency-key" not in headers:
        headers.append("idempotency-key")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    refs = [one["$ref"] for one in (body, *body.get("anyOf", ())) if "$ref" in one]
    needs_more = bool(body) and (not refs or not set(schemas[refs[0].rsplit("/", 1)[1]].get("properties", {})).isdisjoint(
        {n for n, *_ in behind} | {h.replace("-", "_") for h in headers}
    ))  # fmt: skip
    given = [f"{n}: {k}" for n, k in inside]
    arguments = [*given, "/"] if given else []
    if needs_more:
        arguments.append(f"given: {kind(body)}{' = None' if 'None' in kind(body) else ''}")
    named_ones = [
        f"{n}: {k}" if needed else f"{n}: {k if 'None' in k else f'{k} | None'} = None" for n, k, needed in behind
    ]
    named_ones += [f"{h.replace('-', '_')}: str | None = None" for h in headers]
    if named_ones:
        arguments += ["*", *named_ones]
    if refs and not needs_more:
        arguments.append(f"**given: Unpack[{named(refs[0].rsplit('/', 1)[1])}]")
    answers = [
        content["schema"]
        for status, said in operation["responses"].items()
        if status.startswith("2")
        for content in said.get("content", {}).values()
    ]
    returns = " | ".join(dict.fromkeys(kind(one) for one in answers)) or "None"
    sent = [f'"{method}"', f'"{path}"']
    if inside:
        sent.append("{" + ", ".join(f'"{n}": {n}' for n, _ in inside) + "}")
    if behind:
        sent.append("query={" + ", ".join(f'"{n}": {n}' for n, *_ in behind) + "}")
    if body:
        sent.append("body=given or None" if refs and not needs_more and "anyOf" in body else "body=given")
    if headers:
        sent.append("headers={" + ", ".join(f'"{h}": {h.replace("-", "_")}' for h in headers) + "}")
    doc = textwrap.fill(
        plain(operation.get("description", operation.get("summary", ""))), 130, subsequent_indent=" " * 8
    )
    head = (
        f"    def {name}(self, {', '.join(arguments)}) -> {returns}:"
        if arguments
        else f"    def {name}(self) -> {returns}:"
    )
    said = f"{'' if returns == 'None' else 'found: ' + returns + ' = '}self._send({', '.join(sent)})"
    return f'{head}\n        """{doc}"""\n        {said}\n' + ("" if returns == "None" else "        return found\n")


def written() -> str:
    api = described()
    schemas, groups = api["components"]["schemas"], operations(api["paths"])
    out = [HEAD, *typed_dicts(schemas)]
    for group, several in sorted(groups.items()):
        name = "Calls" if not group else f"{group.title()}Calls"
        lines = [
            f"class {name}:\n",
            f'    """{"Every call, by what it is about." if not group else f"Calls about {group}."}"""\n\n',
        ]
        lines.append("    def __init__(self, send: Send) -> None:\n        self._send = send\n")
        if not group:
            lines += [f"        self.{one} = {one.title()}Calls(send)\n" for one in sorted(groups) if one]
        lines += ["\n" + call(one, *several[one], schemas) for one in several]
        out.append("".join(lines))
    return "\n\n".join(out)


def formatted(text: str) -> str:
    import subprocess

    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=text, text=True, capture_output=True, check=True).stdout


def main() -> int:
    text = formatted(written())
    if "--check" in sys.argv:
        if TARGET.read_text(encoding="utf-8") != text:
            sys.stdout.write(f"{TARGET.relative_to(ROOT)} is not what the API says: python docs/make_client.py\n")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
