"""Rows of a leaderboard: one for each combination of axes, adversary and claim, over its seeds.

A figure of a row is the mean of its seeds with a 95% interval by Student's t, which one seed has
not. What accounting gives lies between its least and its largest end in any seed; what is falsified
in one seed is void. A verdict is the worst of the seeds'. Of several attacks of a kind in one audit
the one that found most stands for all.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpaudit.errors import RunError, shortened
from dpaudit.files.atomic_files import artifact_file
from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.files.finding import Column, Finding, Metric, Name, Role, claim_column
from dpaudit.files.published import ResultTable, TableEntry
from dpaudit.files.result import AuditResult, JudgedClaim
from dpaudit.files.verdict import Verdict, worst

from . import tables
from .ci import markdown_table
from .comparison import final_utility
from .numbers import number, span
from .tables import ClaimFigures, Row

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 60  # characters of a value of an axis
NOT_RUN = "not run yet"
PUBLISHED = {  # column of the exported table -> heading of published results
    "claimed_epsilon": "claimed epsilon",
    "claimed_mu": "claimed mu",
    **{key: key for key in ("adjacency", "scope")},
    "accounted_epsilon_low": "accounted, least",
    "accounted_epsilon_high": "accounted, most",
    "measured_epsilon": "measured, at most",
    "verdict": "verdict",
    "missing": "missing premise",
}
IN_MARKDOWN = (  # figures of the table for a page, if some row has them
    "certified_epsilon",
    "ssim_above_blind",
    "tokens_recovered",
    "tpr_at_1%_fpr",
    "bits",
    "test_accuracy",
    "messages_a_round",
    "bytes_a_round",
)


SHARE, FROM_0 = (0.0, 1.0), (0.0, math.inf)


class Figure(NamedTuple):
    """A column of a leaderboard."""

    heading: str
    role: Role | None = None  # role of the findings it comes from, whatever they found
    metric: Name | None = None  # metric of the finding with most of it; None: computed below
    most_of: Name | None = None  # or most of this
    limits: tuple[float, float] = (-math.inf, math.inf)  # range of its values, and of its interval


FIGURES: Mapping[str, Figure] = {
    "certified_epsilon": Figure("certified epsilon, at least", Role.TEST, limits=FROM_0),
    "confidence": Figure("confidence of that", Role.TEST, limits=SHARE),
    "psnr_above_blind": Figure("PSNR above blind (dB)", Role.RECONSTRUCTION),
    "ssim_above_blind": Figure("SSIM above blind", Role.RECONSTRUCTION),
    "share_reconstructed": Figure(
        "share reconstructed", Role.RECONSTRUCTED_SHARE, Name.RECONSTRUCTED, limits=SHARE
    ),
    "share_claim_allows": Figure(
        "share that the claim allows", Role.RECONSTRUCTED_SHARE, limits=SHARE
    ),
    "share_accounting_allows": Figure(
        "share that accounting allows",
        Role.RECONSTRUCTED_SHARE,
        Name.ACCOUNTING_ALLOWS,
        Name.RECONSTRUCTED,
        limits=SHARE,
    ),
    "tokens_recovered": Figure(
        "tokens recovered", Role.TEXT_RECOVERY, Name.TOKENS_RECOVERED, limits=SHARE
    ),
    "tpr_at_1%_fpr": Figure(
        "membership: TPR at 1% FPR", Role.MEMBERSHIP, Name.TPR_AT_001, limits=SHARE
    ),
    "tpr_at_0.1%_fpr": Figure(
        "membership: TPR at 0.1% FPR", Role.MEMBERSHIP, Name.TPR_AT_0001, limits=SHARE
    ),
    "bits": Figure("information (bits)", Role.INFORMATION, Name.INFORMATION, limits=FROM_0),
    "m_nmi": Figure("M-NMI", Role.INFORMATION, Name.M_NMI, Name.INFORMATION, FROM_0),
    "capacity_bits": Figure(
        "capacity of the noise (bits)", Role.INFORMATION, Name.CAPACITY, Name.INFORMATION, FROM_0
    ),
    "test_accuracy": Figure("test accuracy", limits=SHARE),
    "test_accuracy_without_noise": Figure("test accuracy without noise", limits=SHARE),
    "test_loss": Figure("loss", limits=FROM_0),
    "messages_a_round": Figure("messages a round", limits=FROM_0),
    "bytes_a_round": Figure("bytes a round", limits=FROM_0),
}


class AuditRow(NamedTuple):
    """One audit against one of its adversaries, with one of its claims or none."""

    graph: str
    adversary: str  # "" where the audit names none
    judged: ClaimFigures | None
    figures: Mapping[str, float]  # ``FIGURES`` that the audit has
    unavailable: frozenset[str]  # figures that the audit was asked for and lacks
    loss_is: str  # what its loss is


class Gap(NamedTuple):
    """A cell without a result, and why it has none."""

    cell: Cell
    values: tuple[str, ...]  # values of the axes
    why: str


class Standing(NamedTuple):
    """What audits that differ in their seeds alone found of a claim against an adversary."""

    values: tuple[str, ...]  # values of the axes
    seeds: tuple[AuditRow, ...]
    gaps: tuple[Gap, ...]  # gaps of other seeds
    adversary: str
    claim: JudgedClaim | None
    verdict: Verdict | None
    agreeing: int  # seeds that have this verdict
    accounted: Metric | None  # least and largest end over all seeds; its value is the largest
    void: str | None  # what falsifies accounting in some seed
    measured: float | None  # epsilon as claimed, at most, in any seed; None: some seed has none
    missing: str  # of a seed with this verdict what keeps it from being supported
    figures: Mapping[str, Metric]  # those of ``FIGURES`` that some seed has

    def lacks(self, key: str) -> str:
        """Why it has no such figure: "not available" where some seed was asked for it."""
        return "not available" if any(key in seed.unavailable for seed in self.seeds) else ""


def _standing(values: tuple[str, ...], seeds: Sequence[AuditRow], gaps: Sequence[Gap]) -> Standing:
    judged = [seed.judged for seed in seeds if seed.judged is not None]
    verdict = worst([one.claim.verdict for one in judged])
    found = [one.accounted.metric.ends for one in judged if one.accounted.metric is not None]
    low, high = (end([ends[i] for ends in found], default=0.0) for i, end in enumerate((min, max)))
    ranges = [one.claim.range for one in judged if one.claim.range is not None]
    deciding = [one.claim for one in judged if one.claim.verdict is verdict]
    figures = {key: [s.figures[key] for s in seeds if key in s.figures] for key in FIGURES}
    return Standing(
        values=values,
        seeds=tuple(seeds),
        gaps=tuple(gaps),
        adversary=seeds[0].adversary if seeds else "",
        claim=judged[0].claim if judged else None,
        verdict=verdict,
        agreeing=sum(one.claim.verdict is verdict for one in judged),
        accounted=Metric(value=high, low=low, high=high) if found else None,
        void=next((one.accounted.void for one in judged if one.accounted.void), None),
        measured=max(r.measured for r in ranges) if judged and len(ranges) == len(judged) else None,
        missing=deciding[0].lacking if deciding else "",
        figures={k: over_seeds(x, FIGURES[k].limits) for k, x in figures.items() if x},
    )


def over_seeds(
    values: Sequence[float], limits: tuple[float, float] = (-math.inf, math.inf)
) -> Metric:
    """The mean and its 95% interval by Student's t within what is possible; n counts seeds.

    Of one seed, or where one is infinite, there is no interval. An estimate of what cannot be
    negative may be: its interval begins there then.
    """
    from scipy.special import stdtrit  # half a second that pages without it do not wait for

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2 or not math.isfinite(mean):
        return Metric(value=mean, n=n)
    variance = math.fsum((x - mean) ** 2 for x in values) / (n - 1)
    half = float(stdtrit(n - 1, 0.975)) * math.sqrt(variance / n)
    low, high = max(limits[0], mean - half), min(limits[1], mean + half)
    return Metric(value=mean, low=min(low, mean), high=max(high, mean), n=n)


def standings(benchmark: BenchmarkResult, folder: Path) -> list[Standing]:
    """The rows of a benchmark, in the order of its cells.

    A result that cannot be read is a gap, which says why.
    """
    results: dict[str, AuditResult] = {}
    why: dict[str, str] = {}
    for cell in benchmark.cells:
        try:
            if cell.state != "done":
                raise RunError("DPA070", cell.error or NOT_RUN)
            path = artifact_file(folder, f"cells/{cell.name}/audit.json")
            results[cell.name] = AuditResult.read(path)
        except RunError as error:
            why[cell.name] = str(error)
    audits = dict(zip(results, audit_rows(list(results.values())), strict=True))
    texts: dict[str, tuple[str, ...]] = {}  # by combination, whose values may be alike as text
    rows: dict[str, dict[tuple[str, int | None], list[AuditRow]]] = {}
    gaps: dict[str, list[Gap]] = {}
    for cell, values in zip(benchmark.cells, _texts_of_values(benchmark), strict=True):
        which = repr([cell.values.get(axis) for axis in benchmark.axes])
        texts[which] = values
        own = rows.setdefault(which, {})
        for row in audits.get(cell.name, ()):
            claim = None if row.judged is None else row.judged.claim.claim
            own.setdefault((row.adversary, claim), []).append(row)
        if cell.name in why:
            gaps.setdefault(which, []).append(Gap(cell, values, why[cell.name]))
    return [
        _standing(texts[which], seeds, gaps.get(which, ()))
        for which, own in rows.items()
        for seeds in own.values() or [[]]
    ]


def gaps_of(rows: Sequence[Standing]) -> list[Gap]:
    """Each cell without a result, once."""
    return list({gap.cell.name: gap for row in rows for gap in row.gaps}.values())


def audit_rows(results: Sequence[AuditResult]) -> Iterator[list[AuditRow]]:
    """For each audit its adversaries, each with every claim against it or with none."""
    frame = tables.findings_frame(results)
    evidence = tables.evidence_frame(frame, results)
    claims = tables.claim_figures(evidence, results)
    tests = evidence[(evidence.role == Role.TEST) & (evidence.metric == Name.CONFIDENCE)]
    confidence = tests.groupby(["run", "place"]).value.min()
    by_adversary = _figures(frame).to_dict("index")
    for run, result in enumerate(results):
        named = [*(m.name for m in result.threat_models), *(c.threat_model for c in result.claims)]
        utility, rows = _utility(result), []
        for adversary in dict.fromkeys(named) or [""]:
            roles = {f.role for f in result.findings if f.threat_model == adversary}
            found = by_adversary.get((run, adversary), {}) | utility
            share = found.pop("finding_of_shares", math.nan)
            places: list[int | None] = [
                i for i, claim in enumerate(result.claims) if claim.threat_model == adversary
            ]
            for place in places or [None]:
                judged = None if place is None else claims[run][place]
                if judged is not None:
                    certified = judged.certified.compared
                    found["certified_epsilon"] = math.nan if certified is None else certified
                    found["confidence"] = confidence.get((run, place), math.nan)
                    if not math.isnan(share):
                        allowed = _claim_allows(result.findings[int(share)], judged.claim.claim)
                        found["share_claim_allows"] = allowed
                known = {key: x for key, x in found.items() if not math.isnan(x)}
                asked = {key for key, figure in FIGURES.items() if figure.role in roles}
                loss_is = result.utility["defense"].loss_is if "defense" in result.utility else ""
                unavailable = frozenset(asked - known.keys())
                rows.append(
                    AuditRow(result.graph.name, adversary, judged, known, unavailable, loss_is)
                )
        yield rows


def _figures(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The figures by audit and adversary that are no claim's: a column for each of ``FIGURES``.

    "finding_of_shares" is the index of the finding that they take the share reconstructed from.
    """
    import pandas as pd

    where = ["run", "threat_model"]
    own = tables.of_the_defense(frame)
    best = tables.largest(own[own.void.isna() & own.value.notna()], [*where, "role", "metric"])
    columns = {}
    for key, (_, role, metric, most_of, _) in FIGURES.items():
        if metric is not None:
            chosen = best[(best.role == role) & (best.metric == (most_of or metric))]
            named = frame[frame.metric == metric][["run", "finding", "value"]]
            found = chosen[[*where, "finding"]].merge(named, on=["run", "finding"])
            columns[key] = found.set_index(where).value
    shares = best[(best.role == Role.RECONSTRUCTED_SHARE) & (best.metric == Name.RECONSTRUCTED)]
    columns["finding_of_shares"] = shares.set_index(where).finding
    above = _above_blind(frame)
    columns |= {"psnr_above_blind": above[Name.PSNR], "ssim_above_blind": above[Name.SSIM]}
    return pd.DataFrame(columns)


def _above_blind(frame: "pd.DataFrame") -> "pd.DataFrame":
    """By audit and adversary, for PSNR and SSIM: the best reconstruction less the best blind guess.

    Both are of the same targets: of one attack, message, batch size and round.
    """
    scored = frame[frame.role == Role.RECONSTRUCTION]
    scored = scored.assign(round=scored.rounds.str.split()).explode("round").dropna(subset="round")
    same = ["run", "threat_model", "attack", "message", "batch_size", "round", "metric"]
    best = scored.groupby([*same, "world"], dropna=False).value.max().unstack("world")
    best = best.reindex(columns=["defense", "blind"])
    lead = (best["defense"] - best["blind"]).groupby(["run", "threat_model", "metric"]).max()
    return lead.unstack("metric").reindex(columns=[Name.PSNR, Name.SSIM])


def _claim_allows(share: Finding, claim: int) -> float:
    """The share of targets that any attacker can reconstruct, if the claim holds; else NaN."""
    levels = share.series.get(Column.PSNR_AT_LEAST, ())
    allowed = share.series.get(claim_column(claim), ())
    threshold = share.value(Name.THRESHOLD)
    return next((x for at, x in zip(levels, allowed, strict=False) if at == threshold), math.nan)


def _utility(result: AuditResult) -> dict[str, float]:
    """Means over agents after the last evaluated round, and what was sent as a mean over rounds."""
    final, found = final_utility(result), {}
    for key, world in (("test_accuracy", "defense"), ("test_accuracy_without_noise", "no-defense")):
        if world in final and (accuracy := final[world].accuracy) is not None:
            found[key] = accuracy.value
    if "defense" in final:
        found["test_loss"] = final["defense"].loss.value
        curve = result.utility["defense"]
        for key, sent in (("messages_a_round", curve.messages), ("bytes_a_round", curve.bytes)):
            if sent:
                found[key] = sent[-1] / curve.rounds[-1]
    return found


def _texts_of_values(benchmark: BenchmarkResult) -> list[tuple[str, ...]]:
    """The values of the axes of each cell; tables by their names, where these differ."""
    columns = []
    for axis in benchmark.axes:
        values = [cell.values.get(axis) for cell in benchmark.cells]
        texts = [
            "–" if value is None else value if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, default=str)
            for value in values
        ]  # fmt: skip
        pairs = zip(values, texts, strict=True)
        short = [shortened(_name(value) or text, LONGEST) for value, text in pairs]
        meanings = Counter(name for name, _ in {*zip(short, texts, strict=True)})
        columns.append(
            [name if meanings[name] == 1 else text for name, text in zip(short, texts, strict=True)]
        )
    return list(zip(*columns, strict=True)) if columns else [()] * len(benchmark.cells)


def _name(value: object) -> str | None:
    """The name of a table, or of all tables of an array."""
    if isinstance(value, list) and value:
        names = [_name(part) for part in value]
        return None if None in names else ", ".join(filter(None, names))
    named = value.get("name", value.get("text")) if isinstance(value, dict) else None
    return named if isinstance(named, str) else None


def as_rows(axes: Sequence[str], rows: Sequence[Standing]) -> Iterator[Row]:
    """The rows as a table of numbers and texts: the file that is exported."""
    for row in rows:
        claim, accounted, void = row.claim, row.accounted, row.void
        columns: Row = {
            **dict(zip(axes, row.values, strict=True)),
            "adversary": row.adversary,
            "claim": claim and claim.text,
            "scope": claim and claim.scope,
            "adjacency": claim and claim.adjacency,
            "delta": claim and claim.delta,
            "claimed_epsilon": claim and claim.epsilon,
            "claimed_mu": claim and claim.mu,
            "accounted_epsilon_low": accounted and accounted.low,
            "accounted_epsilon_high": accounted and (math.inf if void else accounted.high),
            "accounting_void": void,
            "measured_epsilon": row.measured,
            "verdict": row.verdict and row.verdict.value,
            "missing": row.missing or None,
            "seeds": len(row.seeds),
            "seeds_of_this_verdict": row.agreeing,
        }
        for key in FIGURES:
            metric = row.figures.get(key)
            columns[key] = metric and metric.value
            columns[f"{key}_low"] = metric and metric.low
            columns[f"{key}_high"] = metric and metric.high
            columns[f"{key}_seeds"] = metric and metric.n
        gaps = "; ".join(f"{gap.cell.name}: {gap.why}" for gap in row.gaps)
        yield columns | {"gaps": gaps or None}


def as_table(axes: Mapping[str, str], rows: Sequence[Standing], about: str) -> ResultTable:
    """The same rows as published results: what some row has, in three digits.

    Args:
        axes: by their path, what their columns are called.
    """
    exported = list(as_rows([*axes], rows))
    several = {"adversary": "adversary"} if len({row.adversary for row in rows}) > 1 else {}
    columns = {**axes, **several, **PUBLISHED}
    for key in IN_MARKDOWN:
        of_seeds = {f"{key}_{end}": f"{FIGURES[key].heading}, {end}" for end in ("low", "high")}
        columns |= {key: FIGURES[key].heading, **of_seeds}
    columns |= {"gaps": "gaps"}
    columns = {key: of for key, of in columns.items() if any(r[key] is not None for r in exported)}
    entries = tuple(tuple(_three_digits(row[key]) for key in columns) for row in exported)
    return ResultTable(
        title="All cells", about=about, columns=tuple(columns.values()), rows=entries
    )


def _three_digits(entry: Any) -> TableEntry:
    """What is whole has all of its digits; no JSON holds what is infinite."""
    if not isinstance(entry, float) or entry.is_integer():
        return entry
    return float(f"{entry:.3g}") if math.isfinite(entry) else str(entry)


def as_markdown(axes: Sequence[str], rows: Sequence[Standing]) -> str:
    """A table of what fits on a page; all figures are in the CSV file.

    Args:
        axes: what its first columns are called.
    """
    shown = [key for key in IN_MARKDOWN if any(key in row.figures for row in rows)]
    several = len({row.adversary for row in rows if row.seeds}) > 1
    head = [*axes, *["adversary"] * several, "claimed epsilon", "accounted"]
    head += ["measured, at most", "verdict", "missing premise"]
    head += [FIGURES[key].heading for key in shown]
    table = [
        [*row.values, *[row.adversary] * several, *_judged(row), *(_figure(row, k) for k in shown)]
        for row in rows
    ]
    return "\n".join(markdown_table(head, table)) + "\n"


def _judged(row: Standing) -> list[str]:
    """What is claimed, accounted and measured, and the verdict with what is missing."""
    claim, n = row.claim, len(row.seeds)
    if claim is None:
        return ["", "", "", "no claim" if n else row.gaps[0].why, ""]
    claimed = f"mu {number(claim.mu)}" if claim.epsilon is None else number(claim.epsilon)
    accounted = "" if row.accounted is None else "void" if row.void else span(row.accounted)
    share = f" in {row.agreeing} of {n} seeds" if row.agreeing < n else ""
    measured = "" if row.measured is None else number(row.measured)
    claimed = f"{claimed}, {claim.adjacency}, {claim.scope}"
    return [claimed, accounted, measured, f"{row.verdict}{share}", row.missing]


def _figure(row: Standing, key: str) -> str:
    metric = row.figures.get(key)
    if metric is None:
        return row.lacks(key)
    ends = f" ({number(metric.low)} to {number(metric.high)})" if metric.low is not None else ""
    return f"{number(metric.value)}{ends}"
