"""What a section found: rows of figures, ratios between them, and how both are printed."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any


def number(x: float) -> str:
    """Three significant places or so, thousands separated."""
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    if abs(x) >= 100:
        return f"{x:.0f}"
    return f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def spread(values: list[float]) -> str:
    """`median [min..max]`"""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{number(min(values))}..{number(max(values))}]"


@dataclass
class Row:
    name: str
    #: jobs in the queue, or operations timed
    depth: int | None
    batch: str
    values: list[float] = field(default_factory=list)
    #: further columns of this row: heading → one figure per repetition
    more: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    def add(self, value: float, **more: float | None) -> None:
        self.values.append(value)
        for heading, figure in more.items():
            if figure is not None:
                self.more.setdefault(heading.replace("_", " "), []).append(figure)


@dataclass
class Ratio:
    """A relation between two figures of one run, pair by pair; `least` or `most` is the target, `goal` the wish beyond it."""

    name: str
    values: list[float]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        if not self.values or (self.least is None and self.most is None):
            return None
        middle = statistics.median(self.values)
        return (self.least is None or middle >= self.least) and (self.most is None or middle <= self.most)

    @property
    def target(self) -> str:
        sides = [f"≥ {number(self.least)}"] if self.least is not None else []
        sides += [f"≤ {number(self.most)}"] if self.most is not None else []
        text = " and ".join(sides) + (f" {self.unit}" if sides and self.unit else "")
        return text + (f" (goal {number(self.goal)})" if self.goal else "")

    @property
    def verdict(self) -> str:
        return {True: "met", False: "MISSED", None: "not measured" if not self.values else ""}[self.met]


def over(name: str, above: Row, below: Row, **target: float | None) -> Ratio:
    """`above` divided by `below`, repetition by repetition."""
    pairs = zip(above.values, below.values, strict=False)
    return Ratio(name, [round(a / b, 3) for a, b in pairs if b], **target)  # type: ignore[arg-type]


@dataclass
class Section:
    name: str
    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    #: cores used by other people while the figures were taken, one per measurement
    others: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, name: str, depth: int | None = None, batch: str = "–") -> Row:
        self.rows.append(Row(name, depth, batch))
        return self.rows[-1]

    def plain(self) -> dict[str, Any]:
        data = asdict(self)
        for ratio, plain in zip(self.ratios, data["ratios"], strict=True):
            plain["met"] = ratio.met
        return data

    def text(self) -> str:
        columns = list(dict.fromkeys(heading for row in self.rows for heading in row.more))
        table = [["", "depth", "batch", self.unit, *columns]]
        for row in self.rows:
            table.append(
                [
                    row.name,
                    f"{row.depth:,}" if row.depth else "–",
                    row.batch,
                    spread(row.values),
                    *(spread_short(row.more.get(c, [])) for c in columns),
                ]
            )
        lines = [f"── {self.name} ── {self.title}", *grid(table, right={1})]
        lines += [f"  {row.name}: {row.note}" for row in self.rows if row.note]
        if self.ratios:
            judged = [["ratio", "median [min..max]", "target", ""]]
            judged += [
                [r.name, spread(r.values) + (f" {r.unit}" if r.unit and r.values else ""), r.target, r.verdict]
                for r in self.ratios
            ]
            lines += ["", *grid(judged, right=set())]
        lines += [f"  {note}" for note in self.notes]
        if self.others and max(self.others) >= 0.25:
            lines.append(
                f"  Noisy: other processes used up to {max(self.others):.2f} cores (median {statistics.median(self.others):.2f})."
            )
        return "\n".join(lines) + "\n"


def spread_short(values: list[float]) -> str:
    return number(statistics.median(values)) if values else "–"


def grid(table: list[list[str]], right: set[int]) -> list[str]:
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  "
        + "  ".join(
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
