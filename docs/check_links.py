"""Check that every link in the documentation leads somewhere: `python docs/check_links.py`.

Reads the Markdown files at the top of the repository and below `docs/`. A relative link must name a file or folder
that exists, and its `#fragment` a heading of that file. Links into the web are left alone: this check must not
depend on the network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]

FENCE = re.compile(r"^ {0,3}(```|~~~)")
INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\)")  # [text](target "title"), images too
REFERENCE = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*<?(\S+?)>?(?:\s|$)")  # [name]: target
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:|^//", re.IGNORECASE)  # https:, mailto:, //host
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"", re.IGNORECASE)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page without its code: what stands in code is not a link."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif not fence:
            yield number, line


def links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in prose(page):
        for pattern in (INLINE, REFERENCE):
            for target in pattern.findall(re.sub(r"`[^`]*`", "", line)):
                yield number, target


@cache
def fragments(page: Path) -> set[str]:
    """Return what `#…` can name in a page: its headings, written the way GitHub does, and explicit anchors."""
    found: set[str] = set()
    for _, line in prose(page):
        found.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            repeated = 0
            while (name := f"{slug}-{repeated}" if repeated else slug) in found:
                repeated += 1
            found.add(name)
    return found


def fault(page: Path, target: str) -> str | None:
    """Say what is wrong with a link of a page, or None."""
    if ELSEWHERE.match(target):
        return None
    path, _, fragment = unquote(target).partition("#")
    if path.startswith("/"):
        return "starts with a slash, which leads to different places on different sites"
    goal = (page.parent / path).resolve() if path else page
    if not goal.exists():
        return "leads to a file that is not there"
    if not goal.is_relative_to(ROOT):
        return "leads out of the repository"
    if fragment and goal.suffix == ".md" and fragment not in fragments(goal):
        return "names a heading that is not there"
    return None


def main() -> int:
    faults = [
        f"{page.relative_to(ROOT)}:{number}: {target} {wrong}"
        for page in pages()
        for number, target in links(page)
        if (wrong := fault(page, target))
    ]
    sys.stderr.writelines(f"{line}\n" for line in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
