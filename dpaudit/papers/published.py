"""Published tables as they are printed, and the cells that stand behind their numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

from .experiment import Cell, Labels, Published, Settings

OfLabel = Mapping[str, Settings] | Callable[[str], Settings]  # the settings of a column's label


def printed(
    text: str, rows: Sequence[str], columns: Sequence[Labels], quantity: str
) -> tuple[Published, ...]:
    """The numbers of a table.

    Args:
        text: a line for each row: its labels with commas, a bar, and a number for each column,
            "0.25, DPDL | 94.4±0.6 92.3±0.5"; "-" where the paper has none.
        rows: the names of the columns that the labels before the bar belong to.
        columns: the labels of each number of a line.

    Raises:
        ValueError: a line has too few or too many labels or numbers.
    """
    return tuple(_numbers(text, rows, columns, quantity))


def _numbers(
    text: str, rows: Sequence[str], columns: Sequence[Labels], quantity: str
) -> Iterator[Published]:
    for line in text.strip().splitlines():
        before, _, after = line.partition("|")
        own = dict(zip(rows, (label.strip() for label in before.split(",")), strict=True))
        for labels, number in zip(columns, after.split(), strict=True):
            if number != "-":
                value, _, spread = number.partition("±")
                known = float(spread) if spread else None
                yield Published({**own, **labels}, quantity, float(value), known)


def grid(of_column: Mapping[str, Mapping[str, Settings]]) -> tuple[Cell, ...]:
    """A cell for every combination of the columns' labels; settings of later columns win."""
    found = []
    for labels in product(*of_column.values()):
        settings: dict[str, object] = {}
        for own, label in zip(of_column.values(), labels, strict=True):
            settings |= own[label]
        found.append(Cell(dict(zip(of_column, labels, strict=True)), settings))
    return tuple(found)


def cells_of(published: Iterable[Published], of_column: Mapping[str, OfLabel]) -> tuple[Cell, ...]:
    """A cell for each combination of labels, with the settings that these columns give it."""
    found: dict[tuple[tuple[str, str], ...], Cell] = {}
    for number in published:
        labels = {name: label for name, label in number.labels.items() if name in of_column}
        settings: dict[str, object] = {}
        for name, of_label in of_column.items():
            own = of_label(labels[name]) if callable(of_label) else of_label[labels[name]]
            settings |= own
        found.setdefault(tuple(labels.items()), Cell(labels, settings))
    return tuple(found.values())
