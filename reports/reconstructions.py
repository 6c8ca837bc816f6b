"""Reconstructions on a page: which picture of which finding stands where. Nothing is computed."""

import base64
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import NamedTuple

from dpaudit.files.atomic_files import STRIP_GAP, artifact_file
from dpaudit.files.finding import Column, Finding, Metric, Name, Role, restart_column

PNG = b"\x89PNG\r\n\x1a\n"
WORLDS = ("no-defense", "defense", "blind")
METRICS = (  # these first
    Name.SSIM,
    Name.SSIM_OVER_BLIND,
    Name.PSNR,
    Name.MSE,
    Name.LABEL_ACCURACY,
    Name.LOSS,
)


@dataclass(frozen=True)
class Picture:
    """A PNG artifact, or the reason why it cannot be shown."""

    path: str
    uri: str = ""
    width: int = 1  # pixels, of the whole strip
    height: int = 1
    problem: str = ""

    @property
    def scale(self) -> int:
        """How many times larger a pixel is shown at most: a strip becomes about 64 pixels high."""
        return max(1, round(64 / self.height))


def embedded(path: str, run_directory: Path) -> Picture:
    """An artifact inside the page.

    Raises:
        RunError: the path is absolute, goes up, or meets a link.
    """
    inside = artifact_file(run_directory, path)
    try:
        content = inside.read_bytes() if inside.is_file() else None  # a pipe could have no end
    except (OSError, ValueError):  # ValueError: a path that no file can have
        content = None
    if content is None:
        return Picture(path, problem="missing")
    if not content.startswith(PNG) or len(content) < 24:
        return Picture(path, problem="not a PNG image")
    width, height = struct.unpack(">II", content[16:24])
    if not width or not height:
        return Picture(path, problem="an empty image")
    uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return Picture(path, uri, width, height)


class Pick(NamedTuple):
    """A target that is shown in every world, and its row in the finding that it was picked from."""

    label: str
    victim: float  # the agent
    row: int


class TargetCell(NamedTuple):
    """One target of a finding."""

    pick: Pick
    window: str | None  # its part of the strip, as a viewBox; None: the finding has it not
    width: int  # pixels of that part
    figures: Mapping[str, float] = {}
    restarts: Sequence[tuple[float, bool]] = ()  # loss of each start of its search; was it chosen?


def picks(finding: Finding) -> list[Pick]:
    """The targets with the highest, the median and the lowest SSIM.

    Of an even number the median is the better one of the two in the middle.
    """
    ssim, victims = (finding.series.get(name, ()) for name in (Name.SSIM, Column.VICTIM))
    if not ssim or not victims:
        return []
    order = sorted(range(len(ssim)), key=lambda i: math.inf if math.isnan(ssim[i]) else -ssim[i])
    places = {"best": 0, "median": (len(order) - 1) // 2, "worst": len(order) - 1}
    if len(order) == 1:
        places = {"the only": 0}
    elif len(order) == 2:
        del places["median"]
    return [Pick(label, victims[order[i]], order[i]) for label, i in places.items()]


def target_cells(finding: Finding, picked: list[Pick], picture: Picture) -> list[TargetCell]:
    """The picked targets in a finding's strip; [] where it is no strip of that many images.

    Of a finding that names no targets, all of them, by their number.
    """
    series, ssim = finding.series, finding.metrics.get(Name.SSIM)
    victims = series.get(Column.VICTIM, ())
    n = len(victims) or (ssim.n if ssim and ssim.n else 0)
    width, rest = divmod(picture.width + STRIP_GAP, n) if n else (0, 0)
    width -= STRIP_GAP
    if rest or width < 1 or not picture.uri:
        return []
    cells = []
    for pick in picked if victims else [Pick("", math.nan, i) for i in range(n)]:
        row = pick.row  # the same one, unless other victims were in reach
        if victims and victims[row : row + 1] != (pick.victim,):
            if pick.victim not in victims:
                cells.append(TargetCell(pick, None, width))
                continue
            row = victims.index(pick.victim)
        window = f"{row * (width + STRIP_GAP)} 0 {width} {picture.height}"
        figures: dict[str, float] = {}
        restarts = []
        if victims:
            shown = (name for name in (Name.SSIM, Name.PSNR, Name.MSE) if name in series)
            figures |= {name: series[name][row] for name in shown}
            chosen = series.get(Column.CHOSEN_RESTART)
            for i in takewhile(lambda i: restart_column(i) in series, count(1)):
                is_chosen = chosen is not None and chosen[row] == i
                restarts.append((series[restart_column(i)][row], is_chosen))
        cells.append(TargetCell(pick, window, width, figures, restarts))
    return cells


class NumberedFinding(NamedTuple):
    """A finding and its place in the result, by which claims refer to it."""

    number: int
    finding: Finding


class ImageCell(NamedTuple):
    """What stands in one cell of an image grid: a picture, or why there is none."""

    entry: NumberedFinding
    picture: Picture | None
    targets: list[TargetCell]  # the parts of it that are shown; none: all of it is


class GridRow(NamedTuple):
    """The truth, or one world; a cell for each round, empty or of one picture."""

    label: str
    world: str | None  # None: the truth
    variant: str  # variant, if a world has several findings
    cells: list[list[ImageCell]]


class GroupKey(NamedTuple):
    """What the rounds and worlds of one scenario have in common."""

    threat_model: str | None
    attack: str | None
    message: str | None
    batch_size: int | None


@dataclass(frozen=True)
class ReconstructionGroup:
    """All reconstructions of one message by one attack for one adversary and batch size."""

    key: GroupKey
    entries: tuple[NumberedFinding, ...]

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
    def by_round(self) -> list[NumberedFinding]:
        """The findings round by round, and in a round world by world."""
        order = {world: i for i, world in enumerate(self.worlds)}
        return sorted(self.entries, key=lambda e: (e.finding.rounds, order[e.finding.world]))

    def at(self, world: str | None, round: int) -> list[NumberedFinding]:
        """The findings of one world and round: one, unless there are several blind guesses."""
        return [e for e in self.entries if e.finding.world == world and round in e.finding.rounds]

    def best_blind_or_first(self, world: str | None, round: int) -> NumberedFinding | None:
        """The finding that stands for a world: of blind guesses the one with the highest SSIM."""
        entries = self.at(world, round)
        if world == "blind":
            return max(entries, key=lambda entry: _value(entry.finding, Name.SSIM), default=None)
        return entries[0] if entries else None

    def variant(self, entry: NumberedFinding) -> str:
        """What sets a finding apart from others of its world and rounds; "" if there are none."""
        this = entry.finding
        others = [
            e.finding
            for e in self.entries
            if e.number != entry.number
            and (e.finding.world, e.finding.rounds) == (this.world, this.rounds)
        ]
        own = [note for note in this.notes if not all(note in other.notes for other in others)]
        return "; ".join(own) or (this.title if others else "")

    def metric(self, name: str, round: int) -> dict[str, Metric]:
        """One metric in one round, by world."""
        found = {world: self.best_blind_or_first(world, round) for world in WORLDS}
        return {
            world: entry.finding.metrics[name]
            for world, entry in found.items()
            if entry and name in entry.finding.metrics
        }

    def grid(self, pictures: Mapping[str, Picture], agent: float | None = None) -> list[GridRow]:
        """A row for the truth and one for each world; another truth where a world has its own.

        Args:
            agent: whose images are shown; None: those of the targets that are picked in each round.
        """
        rows: list[GridRow] = []
        truths: dict[int, ImageCell] = {}
        for world in self.worlds:
            new: dict[int, ImageCell] = {}
            for k in self.rounds:
                named = (e for e in self.at(world, k) if "truth" in e.finding.artifacts)
                picked = self._shown_of(k, agent)
                truth = next((_shown(e, "truth", pictures, picked) for e in named), None)
                if truth and not _same(truth, truths.get(k)):
                    new[k] = truth
            if new:
                label = f"ground truth ({world})" if truths else "ground truth"
                cells = [[new[k]] if k in new else [] for k in self.rounds]
                rows.append(GridRow(label, None, "", cells))
                truths |= new
            entries = [entry for entry in self.entries if entry.finding.world == world]
            for variant in dict.fromkeys(self.variant(entry) for entry in entries):
                own = [entry for entry in entries if self.variant(entry) == variant]
                cells = [
                    [
                        _shown(entry, "images", pictures, self._shown_of(k, agent))
                        for entry in own
                        if k in entry.finding.rounds
                    ]
                    for k in self.rounds
                ]
                rows.append(GridRow(world or "reconstruction", world, variant, cells))
        return rows

    def picks(self, round: int) -> list[Pick]:
        """The targets of a round that are shown, picked by how they fared under the defense."""
        found = (
            picks(e.finding) for world in ("defense", *self.worlds) for e in self.at(world, round)
        )
        return next((picked for picked in found if picked), [])

    @property
    def followed(self) -> float | None:
        """The agent that is shown round after round: it fares worst under the defense, on average.

        None: no agent was attacked in all rounds, or there is one round.
        """
        rounds = [self._targets_in(k) for k in self.rounds]
        always = [a for a in rounds[0] if all(a in here for here in rounds)] if rounds[1:] else []
        return max(always, key=lambda a: sum(here[a] for here in rounds), default=None)

    def _targets_in(self, round: int) -> dict[float, float]:
        """SSIM of each agent that was attacked in a round; undefined ones last."""
        for world in ("defense", *self.worlds):
            for entry in self.at(world, round):
                series = entry.finding.series
                if Column.VICTIM in series and Name.SSIM in series:
                    ssim = (-math.inf if math.isnan(x) else x for x in series[Name.SSIM])
                    return dict(zip(series[Column.VICTIM], ssim, strict=True))
        return {}

    def _shown_of(self, round: int, agent: float | None) -> list[Pick]:
        """The targets that are picked in a round; or one agent, whose row is looked up."""
        return self.picks(round) if agent is None else [Pick(f"agent {agent:g}", agent, 0)]

    def in_round(self, round: int) -> "ReconstructionGroup":
        """Its findings of one round, one for each world."""
        entries = (self.best_blind_or_first(world, round) for world in self.worlds)
        found = [
            e._replace(finding=e.finding.model_copy(update={"rounds": (round,)}))
            for e in entries
            if e is not None
        ]
        return ReconstructionGroup(self.key, tuple(found))

    def notes(self, elsewhere: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Each note that is not said elsewhere, and where it applies: [] for all of the scenario.

        A finding that could not be scored says why in its own place, unless none could.
        """
        noted = [e.finding for e in self.entries if e.finding.metrics or not self.scored]
        said = {*elsewhere, *(self.variant(entry) for entry in self.entries)}
        carriers: dict[str, list[Finding]] = {}
        for finding in noted:
            for note in (note for note in finding.notes if note not in said):
                carriers.setdefault(note, []).append(finding)
        return [(note, _places(carrying, noted)) for note, carrying in carriers.items()]


class MostRevealing(NamedTuple):
    """The reconstruction shown beside the verdict, out of how many it was chosen."""

    scenario: ReconstructionGroup
    entry: NumberedFinding
    round: int
    candidates: int


def group_key(finding: Finding) -> GroupKey:
    """The scenario that a finding is of."""
    return GroupKey(finding.threat_model, finding.attack, finding.message, finding.batch_size)


def scenarios(entries: Iterable[NumberedFinding]) -> list[ReconstructionGroup]:
    """The reconstructions, grouped, in the order in which the result has them."""
    grouped: dict[GroupKey, list[NumberedFinding]] = {}
    for entry in entries:
        f = entry.finding
        if f.role is Role.RECONSTRUCTION:
            grouped.setdefault(group_key(f), []).append(entry)
    return [ReconstructionGroup(key, tuple(group)) for key, group in grouped.items()]


def most_revealing(all_scenarios: Iterable[ReconstructionGroup]) -> MostRevealing | None:
    """The reconstruction under the defense whose SSIM is furthest above the blind baseline's."""
    scored = [
        (scenario, entry)
        for scenario in all_scenarios
        for entry in scenario.entries
        if entry.finding.world == "defense"
        and Name.SSIM in entry.finding.metrics
        and entry.finding.rounds
    ]
    if not scored:
        return None
    scenario, entry = max(scored, key=lambda found: _lead(found[1].finding))
    return MostRevealing(scenario, entry, entry.finding.rounds[0], len(scored))


def metric_names(findings: Iterable[Finding]) -> list[str]:
    """Every metric that some finding has: reconstructions' in a fixed order, then others."""
    names = dict.fromkeys(name for finding in findings for name in finding.metrics)
    return [*(n for n in METRICS if n in names), *(n for n in names if n not in METRICS)]


def _lead(finding: Finding) -> tuple[bool, float]:
    over = Name.SSIM_OVER_BLIND in finding.metrics
    return over, _value(finding, Name.SSIM_OVER_BLIND if over else Name.SSIM)


def _value(finding: Finding, name: str) -> float:
    """A metric to compare by: one that is missing or undefined is less than any other."""
    value = finding.value(name)
    return -math.inf if value is None or math.isnan(value) else value


def _shown(
    entry: NumberedFinding, artifact: str, pictures: Mapping[str, Picture], picked: list[Pick]
) -> ImageCell:
    path = entry.finding.artifacts.get(artifact)
    if path is None:
        return ImageCell(entry, None, [])
    return ImageCell(entry, pictures[path], target_cells(entry.finding, picked, pictures[path]))


def _same(a: ImageCell, b: ImageCell | None) -> bool:
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
