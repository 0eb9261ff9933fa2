"""Definitions: made, changed, switched on and off, removed, listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection

from duly.automations.automation import (
    ASKING,
    Automation,
    Definition,
    check_tools,
    definition_mark,
    read_definition,
)
from duly.automations.controller import DISABLED as OFF
from duly.automations.controller import DROPPED, RESCHEDULED, Pass
from duly.automations.definitions import declaration, name_taken
from duly.automations.equipment import Equipment
from duly.automations.event_names import EVENT_NAMES
from duly.automations.looking import OWN
from duly.automations.protocol import FINISH
from duly.automations.store import tool_mark
from duly.kernel.errors import InvalidArgument, WrongState
from duly.kernel.names import nearest
from duly.kernel.payload import check_text

# ``list`` is a method of the door
Many: TypeAlias = list[Automation]
Names: TypeAlias = list[tuple[str, str]]

#: How near the name of a trigger is to that of an event which it is taken for.
NEARLY = 0.85
CREATED, CHANGED, REMOVED = "AUTOMATION_CREATED", "AUTOMATION_CHANGED", "AUTOMATION_REMOVED"
ENABLED, DISABLED = "AUTOMATION_ENABLED", "AUTOMATION_DISABLED"


class Editing(Equipment):
    """The definitions of automations."""

    def _definition(self, said: Definition | Mapping[str, Any], base: Definition | None = None) -> Definition:
        if not isinstance(said, Definition):
            return read_definition(said, base)
        check_tools(said.tools)
        return said

    def _check_names(self, d: Definition, before: Definition | None = None) -> None:
        """Warn of tools that nobody defines and of triggers that are nearly events of Duly's own, or refuse them (``strict_names``). ``before``: the
        definition whose names were told of already."""
        self._app.open()
        names, elsewhere = self._app.engine.names, self.controller.store.tools_elsewhere
        for name in dict.fromkeys(d.tools):
            if (before is None or name not in before.tools) and self.tools.find(name) is None and name != FINISH:
                remedy = "A call of it is refused until a worker that defines it starts."
                names.check("tool", name, self.tools.names(), elsewhere=elsewhere, remedy=remedy)
        heard = {name for name in EVENT_NAMES if not name.startswith(OWN)}
        for name in dict.fromkeys(d.triggers):
            # any name may be fired, so one like no other is no mistake
            is_new = name not in EVENT_NAMES and (before is None or name not in before.triggers)
            if is_new and nearest(name, heard, NEARLY) is not None:
                names.check("event of Duly", name, heard, remedy="Only fire() of that name, or a webhook, runs it.")

    def create(
        self, definition: Definition | Mapping[str, Any], *, enabled: bool = True, tenant: str | None = None, actor: str = "code"
    ) -> Automation:  # fmt: skip
        """Make an automation. Nothing that was planned before this moment runs (T001-i).

        Raises InvalidArgument naming the field, also for a name that is taken.
        """
        d = self._definition(definition)
        self._check_names(d)
        return self._create(d, enabled, self._tenant(tenant), actor)

    def _create(self, d: Definition, enabled: bool, where: str, actor: str, is_declared: bool = False) -> Automation:
        def act(c: Connection) -> Automation:
            self.controller.store.hold_slot(c, d.slot)
            if self._definitions.named(c, d.name, where) is not None:
                raise name_taken(d.name)
            ident = self._definitions.add(c, where, d, enabled, self._db.present(c), actor)
            if is_declared:
                self._definitions.note_declared(c, ident, d)
            self._definitions.audit(c, ident, where, actor, CREATED, name=d.name)
            return self._known(c, ident, where)

        return self._changed(act)

    def ensure(
        self, definition: Definition | Mapping[str, Any], *, tenant: str | None = None, actor: str = "code"
    ) -> Automation:
        """What code declares: make the automation of this name, or change it to this definition where the code declares another one than last.

        It stays as enabled as it is, and what a person has changed since stays until the code declares something else. An older definition than
        newer code has declared is left alone while a worker with that newer code lives (ADR 0050): the event ``declaration_old`` says so.
        """
        d, where = self._definition(definition), self._tenant(tenant)
        self._check_names(d)
        self._declared[where, d.name] = d
        return self._declare(where, d, actor)

    def _declare(self, where: str, d: Definition, actor: str) -> Automation:
        self._app.open()
        known = self._db.read(lambda c: self._definitions.named(c, d.name, where))
        if known is None:
            try:
                return self._create(d, True, where, actor, is_declared=True)
            except InvalidArgument:  # somebody made it at this moment
                known = self._db.read(lambda c: self._definitions.named(c, d.name, where))
                if known is None:
                    raise
        ident = known
        found = self.get(ident, where)
        stands = self._db.read(lambda c: self._definitions.declared(c, ident, where, d))
        if stands not in ("last", "behind"):
            found, stands = self._put(ident, where, d, actor)
        if stands != "behind":
            self.behind.discard((where, d.name))
        elif (where, d.name) not in self.behind:
            self.behind.add((where, d.name))
            self._app.events.emit("declaration_old", "warning", automation_name=d.name, tenant=where)
        return found

    def _put(self, ident: int, where: str, d: Definition, actor: str) -> tuple[Automation, str | None]:
        """Write a definition that code declares, unless newer code has declared it since somebody looked (E2). Returns how it stood then, too."""
        done, stands = Pass(), None

        def act(c: Connection) -> Automation:
            nonlocal stands
            known = self._locked(c, ident, where, lambda found: (found.definition.slot, d.slot))
            stands = self._definitions.declared(c, ident, where, d)
            if stands in ("last", "behind"):
                return known
            if known.definition != d or known.unreadable:
                known = self._change(c, known, d, done, actor, is_whole=True)
            self._definitions.note_declared(c, ident, d)
            return known

        return self._changed(act, done), stands

    def declarations(self) -> dict[str, str]:
        """What this program declares and defines, for a worker's row: automations with a mark of the definition, and tools."""
        own = {declaration(where, name): definition_mark(d) for (where, name), d in self._declared.items()}
        return own | {tool_mark(name): "" for name in self.tools.functions()}

    def undeclared(self, tenant: str | None = None) -> Names:
        """(tenant, name) of automations that code declared once (``ensure``) and no living worker's code declares now. They go on until a person
        disables or removes them."""
        return self._read(lambda c: self._definitions.undeclared(c, tenant))

    def catch_up(self) -> None:
        """Look again at definitions that newer code had replaced: when no worker with that code lives any more, they count again. So does what a
        program that does not know the rule has put an older definition in the place of."""

        def ahead(c: Connection) -> set[tuple[str, str]]:
            named = {at: self._definitions.named(c, at[1], at[0]) for at in self._declared}
            return {
                at for at, ident in named.items()
                if ident is not None and self._definitions.declared(c, ident, at[0], self._declared[at]) == "ahead"
            }  # fmt: skip

        for where, name in sorted(self.behind | self._read(ahead) if self._declared else set()):
            self._declare(where, self._declared[where, name], "code")

    def update(
        self, automation: int | str, changes: Definition | Mapping[str, Any], *, version: int | None = None, tenant: str | None = None,
        actor: str = "code",
    ) -> Automation:  # fmt: skip
        """Change an automation. Only a change of its schedule moves what is wanted of it to from now on (T001-i, case B076).

        ``version``: the one that was looked at; where it is another by now, WrongState. Raises NotFound, InvalidArgument.
        """

        def changed(found: Automation) -> Definition:
            return self._definition(changes, found.definition)

        done, before = Pass(), self.get(automation, tenant)
        self._check_names(changed(before), before.definition)

        def act(c: Connection) -> Automation:
            known = self._locked(c, automation, tenant, lambda found: (found.definition.slot, changed(found).slot))
            if version is not None and version != known.version:
                raise WrongState(
                    f"automation {known.id}", f"at version {known.version}", f"be changed from version {version}"
                )
            d = changed(known)
            # a definition that is given whole replaces what newer code has written; a change of a part of it would lose the rest
            is_whole = isinstance(changes, Definition)
            merged = set() if isinstance(changes, Definition) else {"asking" if n in ASKING else n for n in changes}
            for part in sorted(merged & {"limits", "asking"} & set(known.unreadable)):
                written = f"written by newer code ({known.unreadable[part]})"
                raise WrongState(f"{part} of automation {known.name}", written, "be changed by this program")
            return self._change(c, known, d, done, actor, is_whole)

        return self._changed(act, done)

    def _change(
        self, c: Connection, known: Automation, d: Definition, done: Pass, actor: str, is_whole: bool
    ) -> Automation:
        """Write a new version of an automation under the locks of its slots and its row. Raises WrongState, InvalidArgument."""
        base = known.definition
        if d.slot != base.slot and self.controller.store.unended(c, known.id):
            raise WrongState(f"automation {known.name}", "in its slot, or about to be", "change its slot")
        if self._definitions.named(c, d.name, known.tenant) not in (None, known.id):
            raise name_taken(d.name)
        now = self._db.present(c)
        moved = d.schedule != base.schedule
        if moved:
            self.controller.drop(c, known.id, RESCHEDULED if known.is_enabled else OFF, now, done, actor)
        self._definitions.change(c, known, d, now, actor, reference_at=now if moved else None, is_whole=is_whole)
        fields = [name for name in Definition.__slots__ if getattr(d, name) != getattr(base, name)]
        self._definitions.audit(c, known.id, known.tenant, actor, CHANGED, fields=fields)
        return self._known(c, known.id)

    def enable(
        self, automation: int | str, *, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:
        """Switch an automation on: what was planned while it was off does not run; what was interrupted goes on (T001-i, T001-s)."""
        return self._set_enabled(automation, True, tenant, actor, reason)

    def disable(
        self, automation: int | str, *, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:
        """Switch an automation off: nothing of it starts or goes on until it is on again. A session that has the slot keeps it."""
        return self._set_enabled(automation, False, tenant, actor, reason)

    def _set_enabled(
        self, automation: int | str, enabled: bool, tenant: str | None, actor: str, reason: str
    ) -> Automation:
        check_text(reason, "reason")
        done = Pass()

        def act(c: Connection) -> Automation:
            known = self._locked(c, automation, tenant)
            if known.is_enabled != enabled:
                now = self._db.present(c)
                self.controller.drop(c, known.id, OFF, now, done, actor)
                self._definitions.change(
                    c, known, known.definition, now, actor, enabled=enabled, reference_at=now if enabled else None
                )
                self._definitions.audit(
                    c, known.id, known.tenant, actor, ENABLED if enabled else DISABLED, reason=reason
                )
            return self._known(c, known.id)

        return self._changed(act, done)

    def delete(
        self, automation: int | str, *, version: int | None = None, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:  # fmt: skip
        """Remove an automation; its sessions that have not ended end CANCELLED (T001-s). Its executions stay to be looked at.

        ``version`` as for ``update``. Raises NotFound, WrongState.
        """
        check_text(reason, "reason")

        def act(c: Connection) -> tuple[Automation, Pass]:
            done = Pass()
            known = self._locked(c, automation, tenant)
            if version is not None and version != known.version:
                raise WrongState(
                    f"automation {known.id}", f"at version {known.version}", f"be removed from version {version}"
                )
            self.controller.drop(c, known.id, DROPPED if known.is_enabled else OFF, self._db.present(c), done, actor)
            self._definitions.remove(c, known.id, self._db.present(c), actor)
            for ident in self.controller.store.unended(c, known.id):
                self._stop(c, self.controller.lock(c, ident), "its automation was removed", done, actor)
            self._definitions.audit(c, known.id, known.tenant, actor, REMOVED, name=known.name, reason=reason)
            return known, done

        self._app.open()
        known, done = self._db.write(act)
        self._after(done)
        return known

    def get(self, automation: int | str, tenant: str | None = None) -> Automation:
        """An automation by id or name. Raises NotFound."""
        return self._read(lambda c: self._find(c, automation, tenant))

    def list(
        self, *, tenant: str | None = None, enabled: bool | None = None, slot: str | None = None, below: int | None = None, limit: int = 100
    ) -> Many:  # fmt: skip
        """Automations, the newest first; ``below`` an id goes on from there."""
        return self._read(
            lambda c: self._definitions.find(c, tenant=tenant, enabled=enabled, slot=slot, below=below, limit=limit)
        )
