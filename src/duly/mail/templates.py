"""Templates of messages: ``NAME.subject.txt``, ``NAME.txt``, ``NAME.html`` in one folder, filled in by Jinja2.

What is put into ``NAME.html`` is escaped, in whatever file it stands that is included there; what a template asks for and is not given is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.kernel.errors import InvalidArgument

if TYPE_CHECKING:
    from jinja2 import Environment

_NAME = re.compile(r"\w[\w-]*(?:[./]\w[\w-]*)*")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template, filled in. ``subject`` is one line; at least one of ``text`` and ``html`` is there."""

    subject: str | None
    text: str | None
    html: str | None


class Templates:
    """The templates of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        #: Without escaping, and with it: the file that is asked for decides, not those that it includes.
        self._made: dict[bool, Environment] = {}

    def render(self, name: object, data: object = None) -> Rendered:
        """Fill a template in. ``data``: a mapping. Raises InvalidArgument naming what is wrong or missing."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument("template", "is not the name of a template.")
        if data is None:
            data = {}
        if not isinstance(data, Mapping):
            raise InvalidArgument("data", f"is of type {type(data).__name__}; it must be an object.")
        subject, text, html = (self._part(name, ending, data) for ending in ("subject.txt", "txt", "html"))
        if text is None and html is None:
            raise InvalidArgument(
                "template", f"there is neither {name}.txt nor {name}.html in the folder of templates."
            )
        return Rendered(None if subject is None else " ".join(subject.split()), text, html)

    def _part(self, name: str, ending: str, data: Mapping[str, Any]) -> str | None:
        import jinja2

        file = f"{name}.{ending}"
        try:
            return self._environment(ending == "html").get_template(file).render(dict(data))
        except jinja2.TemplateNotFound as error:
            if error.name == file:
                return None
            raise InvalidArgument("template", f"{file} includes {error.name}, which is not there.") from None
        except jinja2.UndefinedError as error:
            raise InvalidArgument("data", f"lacks what {file} asks for: {error.message}.") from None
        except jinja2.TemplateSyntaxError as error:
            raise InvalidArgument("template", f"{file}, line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise InvalidArgument("template", f"{file} includes itself without end.") from None
        except (jinja2.TemplateError, AttributeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidArgument("template", f"{file} cannot be filled in: {type(error).__name__}.") from None

    def _environment(self, escapes: bool) -> Environment:
        if escapes not in self._made:
            if not self.folder:
                raise InvalidArgument("template", "is given, and the setting mail_templates names no folder.")
            if not Path(self.folder).is_dir():
                raise InvalidArgument("mail_templates", "is not a folder.")
            try:
                import jinja2
            except ImportError:
                raise InvalidArgument("template", "needs Jinja2.", 'Install "duly[mail]".') from None
            self._made[escapes] = jinja2.Environment(
                loader=jinja2.FileSystemLoader(self.folder), undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
                autoescape=escapes,  # noqa: S701
            )  # fmt: skip
        return self._made[escapes]


def filled_in(given: Mapping[str, Any], templates: Templates) -> dict[str, Any]:
    """The fields of EMAIL_SEND with the template among them filled in; a subject that is given wins. Raises InvalidArgument."""
    fields = {name: value for name, value in given.items() if value is not None}
    name, data = fields.pop("template", None), fields.pop("data", None)
    if name is None:
        if data is not None:
            raise InvalidArgument("data", "is given without a template.")
        return fields
    for body in ("text", "html"):
        if body in fields:
            raise InvalidArgument(body, "is given beside a template.", "Give one of them.")
    made = templates.render(name, data)
    out = {"subject": made.subject, "text": made.text, "html": made.html} | fields
    if out["subject"] is None:
        raise InvalidArgument("subject", f"is missing, and there is no {name}.subject.txt.")
    return out
