"""Words of a fixed list as rows keep them, where newer code may have written one that this code does not know."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

W = TypeVar("W", bound=StrEnum)


def word_of(kind: type[W], text: str) -> W:
    """A word as a row says it. One that is not on this code's list is kept as it is: it equals no other, and no look or pass fails of it.

    For what is read from the database only. What a person gives is checked by ``kind(text)``.
    """
    try:
        return kind(text)
    except ValueError:
        word = str.__new__(kind, text)
        word._name_ = word._value_ = text
        return word


def is_known(word: StrEnum | None) -> bool:
    """Is it on this code's list (or none at all)?"""
    return word is None or word in list(type(word))
