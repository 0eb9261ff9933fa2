"""Text without the secrets that it names: what is stored, logged and shown of errors and payloads.

Kept are host, path and names; starred out are passwords of URLs, values of parameters whose names say that they are secret,
credentials of ``Authorization`` headers, and private keys. Every pattern takes time in proportion to the text: no two parts of a
pattern may match the same characters, so nothing is tried twice (case C007; a text of an end user must not stop a process).
"""

from __future__ import annotations

import re

#: Names of parameters whose values are secret, wherever the name stands in a longer one; and those that are exactly this.
_PART = r"pass(?:word|wd|phrase|code)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|signature"
_NAME = re.compile(rf"{_PART}|^(?:key|sig|auth|code|jwt|pwd|otp)$", re.IGNORECASE)
#: ``name=value`` in the query of a URL.
_QUERY = re.compile(r"([?&;])([\w.%-]{1,200}+)=(?:'(?:\\.|[^'\\]){0,4000}+'|[^&\s']++)")
#: Parameters of libpq that are secrets, in a connection string.
_LIBPQ = re.compile(
    r"(\b(?:(?:ssl)?password|scram_(?:client|server)_key|oauth_client_secret)\s?=\s?)(?:'(?:\\.|[^'\\]){0,4000}+'|[^&\s']++)", re.IGNORECASE
)  # fmt: skip
#: ``name='value'`` and ``"name": "value"``, as Python and JSON write them.
_QUOTED = re.compile(r"""(?<![\w-])([\w-]{1,100}+)(["']?\s?[:=]\s?)(["'])([^"'\n]{1,4000}+)\3""")
#: A user and a password before a host, without a scheme.
_BARE = re.compile(r"(?<=[\w.+-]):[^:/@\s]{1,4000}+@(?=[\w.\[])")
_HEADER = re.compile(r"\b(authorization[\"']?\s?[:=]\s?[\"']?)?\b(bearer|basic)\s+([\w.~+/=-]{1,8000}+)", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?")
_HOST = re.compile(r"\b(?:host(?: ?name)?|server at|address) ([\"'])")
#: So many characters of a host in quotes are looked at.
_WINDOW = 300
_WORD, _END = re.compile(r"\S+"), re.compile(r"[/?#]")


def masked(text: str) -> str:
    """The text with the secrets in it replaced by ``***``."""
    if "@" in text:
        if "//" in text:
            text = _WORD.sub(lambda m: _word(m[0]), text)
        text = _BARE.sub(":***@", text)
        text = _hosts(text)
    if "=" in text:
        text = _QUERY.sub(lambda m: f"{m[1]}{m[2]}=***" if _NAME.search(m[2]) else m[0], text)
        text = _LIBPQ.sub(r"\1***", text)
    if "'" in text or '"' in text:
        text = _QUOTED.sub(lambda m: f"{m[1]}{m[2]}{m[3]}***{m[3]}" if _NAME.search(m[1]) else m[0], text)
    if "earer" in text or "asic" in text or "EARER" in text or "ASIC" in text:
        text = _HEADER.sub(
            lambda m: f"{m[1] or ''}{m[2]} ***" if m[1] or not m[3].isalpha() or not m[3].islower() else m[0], text
        )
    return _PEM.sub("-----BEGIN PRIVATE KEY----- ***", text) if "PRIVATE KEY" in text else text


def _word(word: str) -> str:
    """A word of a text without the password of a URL in it: what stands between the colon after the user and the last @, also where the URL is
    half-written, or an @ in it was not escaped."""
    last = word.rfind("@")
    pieces: list[str] = []
    start, done = word.find("//"), 0
    while 0 <= start < last:
        place = start + 2
        while place < len(word) and word[place] not in ":/?#@":
            place += 1
        if place > last:
            break
        if word[place] == ":":
            return "".join(pieces) + word[done:place] + ":***@" + word[last + 1 :]
        if word[place] == "@":
            end = _END.search(word, place)
            second = word.rfind("@", place + 1, end.start() if end is not None else len(word))
            if second > 0:
                pieces += [word[done:place], ":***@"]
                done = place = second + 1
        start = word.find("//", place)
    return "".join(pieces) + word[done:]


def _hosts(text: str) -> str:
    """What a driver takes for the beginning of a host, where the @ of a password was not escaped, is hidden."""
    pieces, done = [], 0
    for found in _HOST.finditer(text):
        start, quote = found.end(), found[1]
        if start < done:
            continue
        window = text[start : start + _WINDOW].partition("\n")[0]
        at = re.search(rf"@(?=[^@\"'\n]*{quote})", window)
        if at is not None:
            pieces += [text[done:start], "***"]
            done = start + at.start()
    return "".join(pieces) + text[done:]
