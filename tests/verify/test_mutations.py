"""Each number of an audit that bears on a verdict is changed in turn, and contradicted."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.verify.verdict import check, overall

AUDIT = """\
seed = 3
data = {{ name = "digits", n_agents = 4 }}
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 2
batch_size = 287
sampling = "poisson"
noise_multiplier = {noise}
[[claim]]
text = "ours"
{claim}
{attack}
"""
AUDITS = {  # by what decides: noise, claim, attack
    "accounting": (2.0, "epsilon = 4.0\ndelta = 1e-5", ""),
    "a message without noise": (0.0, "epsilon = 3.2\ndelta = 1e-5", ""),
    "counted runs": (0.9, "epsilon = 0.5\ndelta = 1e-5", "likelihood-ratio: trials = 400"),
    "bets": (
        1.8,
        "epsilon = 0.5\ndelta = 1e-5",
        "likelihood-ratio: trials = 400\nstop_early = true",
    ),
    "guesses": (
        1.8,
        "epsilon = 1.0\ndelta = 1e-5",
        'canaries: kind = "mislabelled"\ncanaries = 60',
    ),
    "sums of sampled canaries": (1.8, "epsilon = 0.5\ndelta = 1e-5", "canaries: canaries = 60"),
    "matching of mu": (
        1.8,
        "mu = 0.3",
        "likelihood-ratio: trials = 400\ncandidates = 5\nalpha = 0.02",
    ),
}
# What bears on no verdict, by its place in audit.json or, in a finding, after its role.
WITHOUT_MEANING = (
    r"(timing|graph|utility|threat_models)\..*",  # about the run, for people
    r"provenance\.(n_records|agent_sizes).*",  # likewise
    r"config\.(?!claim|attack|seed|data\.n_agents|defense)\w+.*",  # what was run: --replay plays it
    r"config\.attack\.\d+\.(?!alpha).*",  # likewise
    r"claims\.\d+\.decisive",  # which evidence a report draws
    r"[a-z-]+: (series|trace|rounds|batch_size)\b.*",  # for figures
    r"[a-z-]+: .*standard_error",
    r"(?!test|.*control)[a-z-]+: metrics\.(?!rounds\.).*\.n",  # on how many a believed figure rests
    r"test: metrics\.(ceiling|mu lower bound|p-value)\.n",
    r"test: metrics\.(trials needed|expected bound|success that accounting allows)\..*",  # advice
    r"test: metrics\.(success that the claim allows|matched)\.(low|high|value)",  # shown
    r"exact-leak: metrics\.largest mu of a round.*",  # shown
    r"(test|null-control|positive-control): metrics\.epsilon lower bound\.n",  # both worlds' runs
    r"(null-control|positive-control): metrics\.false \w+\..*",  # unless a figure changes
    r"test: metrics\.log wealth\..*",  # of counted runs, which it does not decide
    r"test: evidence\.(places|bet place|bet share)\..*",  # unless the wealth changes
    r"noise: metrics\.(p-value|noise, at most.*)\..*",  # unless it crosses the level 1e-6
    r"(alignment|noise): metrics\.noise over declared\.(low|high)",  # unless it is the range's end
    r"records: metrics\.sampling rate\..*",  # unless a sentence shows it
    r"(alignment|noise|exact-leak): metrics\.rounds\.value",  # unless a premise rests on it
    r"alignment: (metrics\.noise moved over declared|releases)\..*",  # likewise
    r"dependence, of no premise that holds: metrics\.rounds\.value",
    r"sensitivity without bound: .*",  # believed
    r"calibrated alone",  # noise that the run chose; releases hold what it amounts to
    r"restated otherwise",  # a claim on a round, a message or a user, as one on a record and a run
)
Content = dict[str, Any]
Place = tuple[str | int, ...]


@pytest.fixture(scope="session")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories by name, each made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("mutations"), dict[str, Path]()

    class Made(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            noise, claim, attack = AUDITS[name]
            kind, _, options = attack.partition(": ")
            asked = f'[[attack]]\nname = "{kind}"\n{options}' if attack else ""
            (folder / "audit.toml").write_text(AUDIT.format(noise=noise, claim=claim, attack=asked))
            config = AuditConfig.from_toml(folder / "audit.toml")
            run_audit(config, folder / name.replace(" ", "-"), Runtime(cores=1))
            self[name] = folder / name.replace(" ", "-")
            return self[name]

    return Made(made)


def numbers(content: Any, place: Place = ()) -> Iterator[tuple[Place, float | int | str]]:
    """Every number of a file, and where it stands."""
    if isinstance(content, dict | list):
        inside = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in inside:
            yield from numbers(value, (*place, key))
    elif content in ("inf", "-inf", "nan") or (
        isinstance(content, int | float) and not isinstance(content, bool)
    ):
        yield place, content


def examined(content: Content) -> set[str]:
    """Premises that hold for some claim."""
    return {
        premise["name"]
        for claim in content["claims"]
        for premise in claim["premises"]
        if premise["status"] == "examined"
    }


def named(content: Content, place: Place) -> str:
    if place[0] == "findings":
        role, metrics = (content["findings"][place[1]][key] for key in ("role", "metrics"))
        if role == "sensitivity" and "stated bound" not in metrics:
            role = "sensitivity without bound"
        if role == "dependence" and not examined(content) & {"distance", "completeness"}:
            role = "dependence, of no premise that holds"
        return f"{role}: {'.'.join(map(str, place[2:]))}"
    if place[0] == "calibrated" and content["config"]["defense"].get(place[1]) is None:
        return "calibrated alone"
    claim = content["claims"][int(place[1])] if place[0] == "claims" else {}
    if "restated" in place and (claim["scope"] != "run" or claim["adjacency"] == "user"):
        return "restated otherwise"
    return ".".join(map(str, place))


def bearing(content: Content) -> list[tuple[Place, float | int | str]]:
    """The numbers that bear on a verdict."""
    cited = {i for claim in content["claims"] for i in claim["because"]}
    return [
        (place, value)
        for place, value in numbers(content)
        if (place[0] != "findings" or place[1] in cited)
        and not is_of_noiseless(content, place)
        and place[0] not in ("format_version", "schema_version")  # verify refuses others
        and not any(re.fullmatch(p, named(content, place)) for p in WITHOUT_MEANING)
    ]


def is_of_noiseless(content: Content, place: Place) -> bool:
    """Whether it says how often something is released without noise: once is enough."""
    if place[0] != "findings" or place[2] != "releases" or place[-1] == "noise_multiplier":
        return False
    (_, i, _, end, j, _) = place
    release = content["findings"][i]["releases"][end][j]
    return bool(release["noise_multiplier"] == 0)


def mutants(value: float | int | str) -> list[float | int]:
    """Other values: half and five quarters; of a count one more and one less."""
    if isinstance(value, str):
        return [0.0, 1.0]
    if isinstance(value, int):
        return [value + 1, value - 1 if value else value + 2]
    return [1.25 * value, 0.5 * value] if value else [0.7]


def is_contradicted(content: Content, folder: Path) -> bool:
    """Whether verify exits 1; a file that it refuses is no audit.json, and confirms nothing."""
    try:
        found = [one.answer for one in check(content, folder)]
    except (IndexError, KeyError, TypeError, ValueError):
        return True
    return "contradicted" in found or any(flaw.contradicted for flaw in overall(content))


def changed(content: Content, place: Place, value: float | int) -> Content:
    found = copy.deepcopy(content)
    inside: Any = found
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return found


def slipped(content: Content, run: Path, most: int | None) -> list[str]:
    """Mutations of numbers that bear on a verdict, and are not contradicted."""
    assert [one.answer for one in check(content, run)] == ["confirmed"] * len(content["claims"])
    places = [(place, new) for place, old in bearing(content) for new in mutants(old)]
    assert len(places) > 30
    order = np.random.default_rng(45).permutation(len(places))[:most]
    return [
        f"{named(content, places[i][0])} = {places[i][1]}"
        for i in order.tolist()
        if not is_contradicted(changed(content, *places[i]), run)
    ]


def of_audit(run: Path) -> Content:
    content: Content = json.loads((run / "audit.json").read_text())
    return content


def test_changed_numbers_are_contradicted(audits: dict[str, Path]) -> None:
    """Forty of an audit that bets decide, drawn by a fixed seed."""
    assert slipped(of_audit(audits["bets"]), audits["bets"], 40) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AUDITS)
def test_every_changed_number_is_contradicted(audits: dict[str, Path], name: str) -> None:
    assert slipped(of_audit(audits[name]), audits[name], None) == []
