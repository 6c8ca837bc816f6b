"""Which finding goes where on a page: nothing is computed, only grouped and ordered."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpaudit.result import Finding, Metric

from .pictures import Picture

WORLDS = ("no-defense", "defense", "blind")
METRICS = ("ssim", "ssim_over_blind", "psnr", "mse", "label_accuracy", "loss")  # these first


class Entry(NamedTuple):
    """A finding and its place in the result, by which claims refer to it."""

    number: int
    finding: Finding


class Shown(NamedTuple):
    """What stands in one cell of an image grid: a picture, or why there is none."""

    entry: Entry
    picture: Picture | None


class GridRow(NamedTuple):
    """The truth, or one world; a cell for each round, mostly of one picture."""

    label: str
    world: str | None  # None: the truth
    cells: list[list[Shown]]


class Key(NamedTuple):
    """What the rounds and worlds of one scenario have in common."""

    threat_model: str | None
    attack: str | None
    message: str | None
    batch_size: int | None


@dataclass(frozen=True)
class Scenario:
    """All reconstructions of one message by one attack for one adversary and batch size."""

    key: Key
    entries: tuple[Entry, ...]

    @property
    def rounds(self) -> list[int]:
        """Every round attacked, the columns of the grid; [] where the findings name none."""
        return sorted({k for entry in self.entries for k in entry.finding.rounds})

    @property
    def worlds(self) -> list[str | None]:
        present = dict.fromkeys(entry.finding.world for entry in self.entries)
        return [*(w for w in WORLDS if w in present), *(w for w in present if w not in WORLDS)]

    @property
    def scored(self) -> bool:
        """Whether anything was reconstructed: an adversary may not see what it takes."""
        return any(entry.finding.metrics or entry.finding.artifacts for entry in self.entries)

    @property
    def metrics(self) -> list[str]:
        """The metrics that some finding has."""
        return metric_names(entry.finding for entry in self.entries)

    @property
    def by_round(self) -> list[Entry]:
        """The findings round by round, and in a round world by world."""
        order = {world: i for i, world in enumerate(self.worlds)}
        return sorted(self.entries, key=lambda e: (e.finding.rounds, order[e.finding.world]))

    def at(self, world: str | None, round: int) -> list[Entry]:
        """The findings of one cell of the grid: one, unless an attack reports several."""
        return [e for e in self.entries if e.finding.world == world and round in e.finding.rounds]

    def metric(self, name: str, round: int) -> dict[str, Metric]:
        """One metric in one round, by world; the first where a world has several."""
        found = {world: self.at(world, round) for world in WORLDS}
        return {
            world: entries[0].finding.metrics[name]
            for world, entries in found.items()
            if entries and name in entries[0].finding.metrics
        }

    def grid(self, pictures: Mapping[str, Picture], rounds: Sequence[int]) -> list[GridRow]:
        """A row for the truth and one for each world; another truth where a world has its own."""
        rows: list[GridRow] = []
        truths: dict[int, Shown] = {}
        for world in self.worlds:
            found = {k: self._truth(world, k, pictures) for k in rounds}
            new = {k: t for k, t in found.items() if t and not _same(t, truths.get(k))}
            if new:
                label = f"ground truth ({world})" if truths else "ground truth"
                rows.append(GridRow(label, None, [[new[k]] if k in new else [] for k in rounds]))
                truths |= new
            cells = [[_shown(e, "images", pictures) for e in self.at(world, k)] for k in rounds]
            rows.append(GridRow(world or "reconstruction", world, cells))
        return rows

    def notes(self, elsewhere: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Each note that is not said elsewhere, and where it applies: [] for all of the scenario.

        A finding that could not be scored says why in its own place, unless none could.
        """
        noted = [e.finding for e in self.entries if e.finding.metrics or not self.scored]
        carriers: dict[str, list[Finding]] = {}
        for finding in noted:
            for note in (note for note in finding.notes if note not in elsewhere):
                carriers.setdefault(note, []).append(finding)
        return [(note, _places(carrying, noted)) for note, carrying in carriers.items()]

    def _truth(
        self, world: str | None, round: int, pictures: Mapping[str, Picture]
    ) -> Shown | None:
        named = (e for e in self.at(world, round) if "truth" in e.finding.artifacts)
        return next((_shown(entry, "truth", pictures) for entry in named), None)


class Telling(NamedTuple):
    """The reconstruction shown beside the verdict, out of how many it was chosen."""

    scenario: Scenario
    entry: Entry
    round: int
    candidates: int


def scenarios(entries: Iterable[Entry]) -> list[Scenario]:
    """The reconstructions, grouped, in the order in which the result has them."""
    grouped: dict[Key, list[Entry]] = {}
    for entry in entries:
        f = entry.finding
        if f.kind == "reconstruction":
            key = Key(f.threat_model, f.attack, f.message, f.batch_size)
            grouped.setdefault(key, []).append(entry)
    return [Scenario(key, tuple(group)) for key, group in grouped.items()]


def most_telling(all_scenarios: Iterable[Scenario]) -> Telling | None:
    """The reconstruction under the defense whose SSIM is furthest above the blind baseline's."""
    scored = [
        (scenario, entry)
        for scenario in all_scenarios
        for entry in scenario.entries
        if entry.finding.world == "defense"
        and "ssim" in entry.finding.metrics
        and entry.finding.rounds
    ]
    if not scored:
        return None
    scenario, entry = max(scored, key=lambda found: _lead(found[1].finding))
    return Telling(scenario, entry, entry.finding.rounds[0], len(scored))


def shared_notes(all_scenarios: Iterable[Scenario]) -> list[str]:
    """The notes that every scored reconstruction carries, such as PSNR's range: said once."""
    scored = [e.finding.notes for s in all_scenarios for e in s.entries if e.finding.metrics]
    first = scored[0] if scored else ()
    return [note for note in dict.fromkeys(first) if all(note in notes for notes in scored)]


def metric_names(findings: Iterable[Finding]) -> list[str]:
    """Every metric that some finding has: reconstructions' in a fixed order, then others."""
    names = dict.fromkeys(name for finding in findings for name in finding.metrics)
    return [*(n for n in METRICS if n in names), *(n for n in names if n not in METRICS)]


def _lead(finding: Finding) -> tuple[bool, float]:
    over = finding.metrics.get("ssim_over_blind")
    lead = (over or finding.metrics["ssim"]).value
    return over is not None, -math.inf if math.isnan(lead) else lead


def _shown(entry: Entry, artifact: str, pictures: Mapping[str, Picture]) -> Shown:
    path = entry.finding.artifacts.get(artifact)
    return Shown(entry, pictures[path] if path is not None else None)


def _same(a: Shown, b: Shown | None) -> bool:
    if a.picture is None or b is None or b.picture is None:
        return False
    return a.picture.path == b.picture.path or "" != a.picture.uri == b.picture.uri


def _places(some: Sequence[Finding], of: Sequence[Finding]) -> list[str]:
    """Which findings some are: [] for all, a world for all of that world, else world and rounds."""
    if len(some) == len(of):
        return []
    places = []
    for world in dict.fromkeys(finding.world for finding in some):
        own = [finding for finding in some if finding.world == world]
        rounds = ", ".join(str(k) for finding in own for k in finding.rounds)
        whole = len(own) == sum(finding.world == world for finding in of)
        places.append(f"{world}" if whole else f"{world}, round {rounds}")
    return places
