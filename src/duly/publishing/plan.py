"""A plan of posts: a brand, its channels, a template, and slots of time; read, checked, and turned into a post per slot and channel.

::

    brand: orchard                      timezone: Europe/Rome         channels: [instagram, blog]      name: spring (else the file's name)
    template:  a text, or {body, title, overrides: {channel: text or {body, title}}}; {name} is a placeholder, {{ a brace
    slots:     - at: 2026-03-27T18:00   in the plan's time zone, or with an offset
                 channels, placeholders, assets, title, link, first_comment, options

Everything that is wrong is found before anything is written, each with its place. A local time that a change of clocks leaves out is
the first instant after the gap, one that is shown twice its first pass, as everywhere (HOUSE 9). The key of a post is made of what it
says (``keys.py``), so a plan takes none. Pure, but for the files beside a plan: they are read for their checksums.
Source: R002-3 to R002-5, T002-a, T002-m, T002-o.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import resolve, zone
from duly.kernel.payload import check_name, check_text, check_value
from duly.kernel.recurrence.reading import quoted, read_instant, read_local, write_instant
from duly.kernel.source import Problem, Reading, Source, Steps, kind_words, path_of, read
from duly.publishing.keys import post_keys
from duly.publishing.post import Asset

MOST_SLOTS, MOST_CHANNELS, MOST_ASSETS = 5_000, 50, 50
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAN = ("name", "brand", "timezone", "channels", "template", "slots", "description")
_SLOT = ("at", "channels", "placeholders", "assets", "title", "link", "first_comment", "options")
_ASSET = ("kind", "url", "path", "checksum", "reference", "alt")
_KEYS = ("key", "idempotency_key")
_VIDEOS = (".mp4", ".mov", ".m4v", ".webm", ".avi", ".mkv")
_CHECKSUM = re.compile(r"sha256:[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Planned:
    """A post that a plan asks for: one slot on one channel."""

    channel: str
    #: Aware, in UTC.
    run_at: datetime
    key: str
    #: What ``read_post`` reads.
    payload: Mapping[str, Any] = field(repr=False)
    #: Where it stands, for people: ``posts.yaml:12 slots[0]``.
    place: str = ""
    #: Other keys of the same post, and its key in the first version (``keys.Keys``).
    also: tuple[str, ...] = ()
    old_key: str = ""
    #: The wall clock's time and its zone, where the plan gave a local time: the post is re-timed by them when zone data change.
    local: str | None = None
    tz: str | None = None
    #: The name of the plan, by which ``sync`` knows what it has made.
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as it was read: every post it asks for, by instant and channel. ``timezone``: the zone of local times, None if it has none."""

    brand: str
    timezone: str | None
    channels: tuple[str, ...]
    items: tuple[Planned, ...]
    file: str | None = None
    #: What ``sync`` knows the plan by: its field ``name``, else the name of its file.
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Template:
    body: str
    title: str


def load(document: str | Path | Mapping[str, Any], *, files: bool = True) -> Plan:
    """A plan from a file's name (YAML or JSON) or a mapping. Raises InvalidDocument with all that is wrong, InvalidArgument for the file.

    Paths of assets are beside the file; those of a mapping begin at the current folder. ``files=False`` refuses paths, for plans that
    come from somewhere else.
    """
    source = read(document)
    folder = Path.cwd() if isinstance(document, Mapping) else Path(document).resolve().parent
    return checked(source, folder if files else None)


def checked(source: Source, folder: Path | None) -> Plan:
    """A plan from what was read. ``folder``: where its files are; None refuses paths. Raises InvalidDocument."""
    reading = _Reading(source, folder)
    try:
        check_value(source.value, "")
    except InvalidArgument as error:
        reading.problems.append(Problem(error.field, error.problem, error.remedy, file=source.file))
        reading.refuse_if_wrong()
    plan = reading.plan()
    reading.refuse_if_wrong()
    assert plan is not None
    return plan


def placeholders(text: str) -> tuple[str, ...]:
    """The names of the placeholders of a template, in order. Raises InvalidArgument for a brace that begins none."""
    found = []
    for part in _PART.finditer(text):
        name = part[1]
        if name is None and part[0] in "{}":
            raise InvalidArgument(
                "template", f"has a single {part[0]}.", f"Write {part[0] * 2} where a brace is meant."
            )
        if name is not None and not _NAME.fullmatch(name):
            problem = f"has {quoted(part[0])}, which is no placeholder."
            raise InvalidArgument("template", problem, "Write {name}, or {{ and }} where braces are meant.")
        if name is not None:
            found.append(name)
    return tuple(found)


def fill(text: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled in; ``values`` has all of them. What is filled in is not read again."""
    return _PART.sub(lambda part: part[0][0] if part[1] is None else values[part[1]], text)


class _Reading(Reading):
    def __init__(self, source: Source, folder: Path | None) -> None:
        super().__init__(source)
        self.folder = folder
        self.timezone: str | None = None
        self.name = ""
        self.channels: tuple[str, ...] = ()
        #: Files that were read: path → (checksum, what is wrong).
        self.files: dict[Path, tuple[str, str]] = {}

    # ------------------------------------------------------------------ the plan

    def plan(self) -> Plan | None:
        value = self.without_key(self.source.value, ())
        said = self.mapping(value, (), _PLAN, ("brand", "channels", "template", "slots"))
        if said is None:
            return None
        brand = self.given(said, "brand", lambda one: check_name(one, "brand"))
        name = self.given(said, "name", lambda one: check_name(one, "name"))
        self.name = name or (Path(self.source.file).name if self.source.file else "")
        if said.get("timezone") is not None:
            self.timezone = self.argument(lambda: zone(said["timezone"]).key, ("timezone",))
        if said.get("description") is not None:
            self.text(said["description"], ("description",))
        self.channels = self.names(said.get("channels"), ("channels",)) if said.get("channels") is not None else ()
        known = len(self.problems)
        templates = self.templates(said.get("template"), ("template",)) if said.get("template") is not None else {}
        if len(self.problems) > known:
            templates = {}  # what slots lack can be said once the template can be read
        items = self.slots(said.get("slots"), brand or "", templates) if said.get("slots") is not None else []
        if self.problems:
            return None
        items.sort(key=lambda one: (one.run_at, self.channels.index(one.channel)))
        return Plan(brand or "", self.timezone, self.channels, tuple(items), self.source.file, self.name)

    def given(self, said: Mapping[str, Any], name: str, fn: Any) -> Any:
        return None if said.get(name) is None else self.argument(lambda: fn(said[name]), (name,))

    def without_key(self, value: Any, at: Steps) -> Any:
        """A key beside a plan is refused by name (T002-o); the rest is looked at."""
        if not isinstance(value, Mapping):
            return value
        for name in _KEYS:
            if name in value:
                remedy = "Leave it out: the key is made of brand, channel, instant, assets and caption."
                self.wrong((*at, name), "is given, and a plan decides its keys itself.", remedy, key=True)
        return {name: inner for name, inner in value.items() if name not in _KEYS}

    def names(self, value: Any, at: Steps) -> tuple[str, ...]:
        """Names of channels, each once."""
        if not isinstance(value, list):
            self.wrong(at, f"is {kind_words(value)}.", "Write a list of channels.")
            return ()
        if not 1 <= len(value) <= MOST_CHANNELS:
            self.wrong(at, f"has {len(value)} entries.", f"Write 1 to {MOST_CHANNELS} channels.")
            return ()
        found: list[str] = []
        for n, one in enumerate(value):
            name = self.argument(partial(check_name, one, "channel"), (*at, n))
            if name in found:
                self.wrong((*at, n), f"is {quoted(name)}, which stands there already.", "Name it once.")
            elif name is not None:
                found.append(name)
        return tuple(found)

    # ------------------------------------------------------------------ templates

    def templates(self, value: Any, at: Steps) -> dict[str, _Template]:
        """The template of each channel."""
        if isinstance(value, str):
            value, bare = {"body": value}, True
        else:
            bare = False
        said = self.mapping(value, at, ("body", "title", "overrides"), ("body",))
        if said is None:
            return {}
        body = self.template(said.get("body"), at if bare else (*at, "body"))
        title = self.template(said.get("title", ""), (*at, "title"))
        found = {channel: _Template(body, title) for channel in self.channels}
        overrides = said.get("overrides")
        if overrides is None:
            return found
        here = (*at, "overrides")
        for channel, other in (self.mapping(overrides, here, self.channels) or {}).items():
            inner: Steps = (*here, channel)
            if isinstance(other, str):
                found[channel] = _Template(self.template(other, inner), title)
                continue
            one = self.mapping(other, inner, ("body", "title"))
            if one is not None:
                found[channel] = _Template(
                    self.template(one["body"], (*inner, "body")) if "body" in one else body,
                    self.template(one["title"], (*inner, "title")) if "title" in one else title,
                )
        return found

    def template(self, value: Any, at: Steps) -> str:
        if value is None:
            return ""  # it is needed, and that was said
        text = self.text(value, at)
        return "" if text is None or self.argument(lambda: placeholders(text), at) is None else text

    # ------------------------------------------------------------------ slots

    def slots(self, value: Any, brand: str, templates: Mapping[str, _Template]) -> list[Planned]:
        at: Steps = ("slots",)
        if not isinstance(value, list):
            self.wrong(at, f"is {kind_words(value)}.", "Write a list of slots.")
            return []
        if not 1 <= len(value) <= MOST_SLOTS:
            self.wrong(at, f"has {len(value):,} entries.", f"Write 1 to {MOST_SLOTS:,} slots.")
            return []
        found: dict[str, Planned] = {}
        for n, one in enumerate(value):
            for item in self.slot(one, (*at, n), brand, templates):
                if item.key in found:
                    problem = f"is the same post on {item.channel} as {found[item.key].place}."
                    self.wrong((*at, n), problem, "Leave one of them out, or change its time, its assets or its text.")
                found.setdefault(item.key, item)
        return list(found.values())

    def slot(self, value: Any, at: Steps, brand: str, templates: Mapping[str, _Template]) -> Iterator[Planned]:
        before = len(self.problems)
        said = self.mapping(self.without_key(value, at), at, _SLOT, ("at",))
        if said is None:
            return
        run_at = self.instant(said["at"], (*at, "at")) if said.get("at") is not None else None
        channels = self.channels
        if said.get("channels") is not None:
            channels = self.names(said["channels"], (*at, "channels"))
            for name in channels:
                if name not in self.channels:
                    where = (*at, "channels", said["channels"].index(name))
                    self.wrong(where, f"is {quoted(name)}, which is no channel of the plan.", f"The plan has: {', '.join(self.channels)}.")  # fmt: skip
        values = self.values(said.get("placeholders"), (*at, "placeholders"))
        assets = self.assets(said.get("assets"), (*at, "assets"))
        link = (self.text(said["link"], (*at, "link")) if said.get("link") is not None else "") or ""
        comment = self.template(said["first_comment"], (*at, "first_comment")) if said.get("first_comment") is not None else None  # fmt: skip
        title = self.template(said["title"], (*at, "title")) if said.get("title") is not None else None
        options = self.options(said.get("options"), (*at, "options"))
        if values is None:
            return
        used: set[str] = set()
        self.cover(title or "", values, (*at, "title"), used)
        self.cover(comment or "", values, (*at, "first_comment"), used)
        for channel in channels:
            if channel in templates:
                whole = templates[channel].body + (templates[channel].title if title is None else "")
                self.cover(whole, values, at, used, channel)
        if len(self.problems) == before and templates:
            for name in values:
                if name not in used:
                    remedy = f"Write {{{name}}} into a text, or leave it out."
                    self.wrong((*at, "placeholders", name), "is used by no text of this slot.", remedy, key=True)
        if len(self.problems) > before or run_at is None or not templates:
            return
        for channel in channels:
            template = templates[channel]
            caption = fill(template.body, values)
            payload: dict[str, Any] = {"brand": brand, "caption": caption, "scheduled_at": write_instant(run_at)}
            more = {
                "title": fill(template.title if title is None else title, values),
                "link": link,
                "assets": [_as_json(one) for one in assets],
                "ig_first_comment": None if comment is None else fill(comment, values),
                "options": options,
            }
            payload |= {name: inner for name, inner in more.items() if inner}
            local = said["at"] if datetime.fromisoformat(said["at"]).tzinfo is None else None
            if local is not None:
                local = read_local(local, "at").isoformat(timespec="seconds")
            tz = self.timezone if local is not None else None
            keys = post_keys(brand, channel, run_at, local, tz, assets, payload)
            yield Planned(
                channel, run_at, keys.key, payload, self.place(at), keys.also, keys.old, local, tz, self.name
            )  # fmt: skip

    def place(self, at: Steps) -> str:
        line = self.source.places.get(at)
        return f"{self.source.file}:{line[0]} {path_of(at)}" if line else path_of(at)

    def cover(
        self, text: str, values: Mapping[str, str], at: Steps, used: set[str], channel: str | None = None
    ) -> None:
        """Note which placeholders a text uses, and which of them have no value."""
        names = dict.fromkeys(placeholders(text))
        used.update(names)
        lacking = [name for name in names if name not in values]
        if lacking:
            where = f" for {channel}" if channel else ""
            words = ", ".join(f"{{{name}}}" for name in lacking)
            self.wrong(at, f"gives no value{where} to {words}.", f"Add `placeholders: {{{lacking[0]}: …}}`.")

    def instant(self, value: Any, at: Steps) -> datetime | None:
        """An instant: with its offset as it is, without one by the plan's clock."""
        remedy = "Write a time such as 2026-03-27T18:00, or with an offset: 2026-03-27T18:00:00+01:00."
        if not isinstance(value, str):
            self.wrong(at, f"is {kind_words(value)}.", remedy)
            return None
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            self.wrong(at, f"is {quoted(value)}.", remedy)
            return None
        if len(value) <= 10:
            self.wrong(at, f"is {quoted(value)}, which has no time of day.", remedy)
            return None
        if parsed.tzinfo is not None:
            return self.argument(lambda: read_instant(value, "at"), at)  # type: ignore[no-any-return]
        if self.timezone is None:
            if ("timezone",) not in {tuple(p.path.split(".")) for p in self.problems}:
                self.wrong(at, f"is {quoted(value)}, without an offset, and the plan has no timezone.", "Add `timezone: Europe/Rome` to the plan, or an offset here.")  # fmt: skip
            return None
        name = self.timezone
        return self.argument(lambda: resolve(read_local(value, "at"), name)[0], at)  # type: ignore[no-any-return]

    def values(self, value: Any, at: Steps) -> dict[str, str] | None:
        """What placeholders stand for, as texts. None where something is wrong."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(at, f"is {kind_words(value)}.", "Write a mapping of names to texts.")
            return None
        found: dict[str, str] = {}
        for name, inner in value.items():
            if not _NAME.fullmatch(name):
                self.wrong((*at, name), "cannot be the name of a placeholder.", "Write a letter, then letters, digits or _.", key=True)  # fmt: skip
            elif isinstance(inner, str):
                found[name] = inner
            else:  # 1.50 would be published as 1.5, and 0039 as 39
                self.wrong(
                    (*at, name), f"is {kind_words(inner)}.", "Write it in quotes, and it is published as it is written."
                )
        return found if len(found) == len(value) else None

    def options(self, value: Any, at: Steps) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(at, f"is {kind_words(value)}.", "Write a mapping of what only this connector knows.")
            return {}
        return dict(value)

    # ------------------------------------------------------------------ assets

    def assets(self, value: Any, at: Steps) -> tuple[Asset, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(at, f"is {kind_words(value)}.", "Write a list of assets.")
            return ()
        if len(value) > MOST_ASSETS:
            self.wrong(at, f"has {len(value)} entries; at most {MOST_ASSETS} are read.")
            return ()
        found = [self.asset(one, (*at, n)) for n, one in enumerate(value)]
        return tuple(one for one in found if one is not None)

    def asset(self, value: Any, at: Steps) -> Asset | None:
        bare = isinstance(value, str)
        if bare:
            value = {"url" if "://" in value else "path": value}
        said = self.mapping(value, at, _ASSET)
        if said is None:
            return None
        here = {name: (at if bare else (*at, name)) for name in _ASSET}
        texts: dict[str, str] = {}
        for name, inner in said.items():
            if name in _ASSET and inner is not None:
                text = self.text(inner, here[name])
                if text is not None and self.argument(partial(check_text, text, "asset"), here[name]) is not None:
                    texts[name] = text
        if not any(texts.get(name) for name in ("url", "path", "reference")):
            self.wrong(at, "has neither url, path nor reference.", "Say where it is.")
            return None
        where = texts.get("path") or texts.get("url", "").partition("?")[0]
        kind = texts.get("kind") or ("video" if where.lower().endswith(_VIDEOS) else "image")
        if kind not in ("image", "video"):
            self.wrong(here["kind"], f"is {quoted(kind)}.", "Write image or video.")
            return None
        checksum = texts.get("checksum")
        if checksum is not None and checksum.startswith("sha256:"):
            if not _CHECKSUM.fullmatch(checksum):
                self.wrong(here["checksum"], f"is {quoted(checksum)}.", "Behind sha256: stand 64 hexadecimal digits.")
                return None
            checksum = checksum.lower()
        path = texts.get("path")
        if path is not None:
            path, checksum = self.file(path, checksum, here["path"], bool(texts.get("reference") or texts.get("url")))
        return Asset("video" if kind == "video" else "image", texts.get("url"), path, checksum, texts.get("reference"), texts.get("alt", ""))  # fmt: skip

    def file(self, path: str, checksum: str | None, at: Steps, named: bool) -> tuple[str | None, str | None]:
        """A file beside the plan: (its absolute path, its checksum). It may be missing where something else names the asset."""
        if self.folder is None:
            self.wrong(at, "names a file, and this plan comes from somewhere else.", "Give a url or a reference.")
            return None, checksum
        full = self.folder / path
        if full not in self.files:
            self.files[full] = _digest(full)
        found, problem = self.files[full]
        if problem and checksum is None and not named:
            self.wrong(at, f"is {quoted(path)}, and {problem}.", "Paths begin at the folder of the plan.")
        if found and checksum is not None and checksum.startswith("sha256:") and checksum != found:
            self.wrong(at, f"is {quoted(path)}, whose content has another checksum.", f"It is {found}.")
        return str(full), checksum or found or None


def _digest(path: Path) -> tuple[str, str]:
    """(``sha256:…`` of a file, or what is wrong with it)."""
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", ""
    except FileNotFoundError:
        return "", "there is no such file"
    except (OSError, ValueError) as error:
        return "", f"it cannot be read ({getattr(error, 'strerror', None) or error})"


def _as_json(asset: Asset) -> dict[str, Any]:
    values = {name: getattr(asset, name) for name in _ASSET}
    return {name: value for name, value in values.items() if value}
