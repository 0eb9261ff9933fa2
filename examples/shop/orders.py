"""What is ordered: the one description of an order that the file, the till and the API share. Knows no database and no HTTP."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

COLUMNS = ("number", "customer", "item", "quantity", "amount")


class NewOrder(BaseModel):
    """An order as a customer sends it: the body of ``POST /orders``."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    #: The customer's own number for it; there is one order of each.
    number: int = Field(ge=1, lt=2**31)
    customer: str = Field(pattern=r"^[A-Za-z0-9-]{1,40}$")
    #: One line of text.
    item: str = Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")
    quantity: int = Field(ge=1, le=999)
    #: Of the whole order, in euros.
    amount: Decimal = Field(gt=0, max_digits=9, decimal_places=2)

    @field_validator("amount", mode="after")
    @classmethod
    def _to_the_cent(cls, amount: Decimal) -> Decimal:
        # 12.5 and 12.50 are one amount, so they are written alike
        return amount.quantize(Decimal("0.01"))

    @property
    def cents(self) -> int:
        return int(self.amount * 100)


class Unusable(Exception):
    """A file that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file that is an order."""

    number: int
    order: NewOrder


@dataclass(frozen=True, slots=True)
class Problem:
    """A line of the file, and what is wrong with it."""

    line: int
    text: str


def read_orders(file: Path) -> tuple[list[Line], list[Problem]]:
    """The orders of a CSV file in the order of its lines, and the lines that are none; other columns are left alone.

    Each line stands for itself, so that a quotation mark that is never closed spoils one order and not the rest of the
    file. Raises Unusable when this is not a file of orders.
    """
    try:
        raw = file.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}.") from None
    header = _header(file, raw[0] if raw else b"")
    good, bad = list[Line](), list[Problem]()
    for number, text in enumerate(raw[1:], start=2):
        if not text.strip():
            continue
        try:
            good.append(Line(number, _order(header, text)))
        except ValueError as error:
            bad.append(Problem(number, "; ".join(_said(error))))
    if not good and not bad:
        raise Unusable(f"{file} holds no orders.")
    return good, bad


def _header(file: Path, first: bytes) -> list[str]:
    try:
        header = [name.strip() for name in _cells(first)]
    except ValueError as error:
        raise Unusable(f"{file} is not CSV in UTF-8: its first line {error}.") from None
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise Unusable(
            f"{file} has no column {' and no column '.join(missing)}: its first line must be '{','.join(COLUMNS)}'."
        )
    return header


def _order(header: list[str], text: bytes) -> NewOrder:
    """Raises ValueError saying what is wrong with the line (a ValidationError is one)."""
    cells = _cells(text)
    if len(cells) != len(header):
        raise ValueError(f"has {len(cells)} columns of {len(header)}")
    return NewOrder.model_validate({name: cell for name, cell in zip(header, cells, strict=True) if name in COLUMNS})


def _cells(text: bytes) -> list[str]:
    try:
        return next(csv.reader([text.decode()], strict=True), [])
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from None
    except csv.Error as error:
        quote = text.count(b'"') % 2
        raise ValueError("has a quotation mark that is not closed" if quote else f"is not CSV: {error}") from None


def _said(error: ValueError) -> Iterator[str]:
    if not isinstance(error, ValidationError):
        yield str(error)
        return
    for one in error.errors():
        field, given, wrong = one["loc"][0], one["input"], one["msg"]
        yield f"{field} is empty" if given == "" else f"{field} is {given!r}: {wrong[:1].lower()}{wrong[1:]}"
