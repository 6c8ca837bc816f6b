"""Evidence that was cut from an audit.json, or words that it does not bear, are contradicted."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.commands.coherence import flaws
from dpaudit.commands.reasons import SAYS
from dpaudit.commands.required_evidence import CONTROLS, FIGURES, differing
from dpaudit.files.threat import ThreatModel
from dpaudit.verify import verdict

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
NAMES = [path.parent.name for path in sorted(GALLERY.glob("*/audit.json"))]
Content = dict[str, Any]
Change = Callable[[Content], None]


def of(name: str) -> Content:
    content: Content = json.loads((GALLERY / name / "audit.json").read_text("utf-8"))
    return content


def where(content: Content) -> list[str]:
    return [flaw.where for flaw in flaws(content, GALLERY)]


def is_believed(content: Content, name: str) -> bool:
    """Not contradicted: some of the gallery lack the matrices of their views."""
    found = [*flaws(content, GALLERY / name), *verdict.overall(content)]
    checked = verdict.check(content, GALLERY / name)
    return not found and not any(one.answer == "contradicted" for one in checked)


def finding(i: int, **other: Any) -> Change:
    return lambda content: content["findings"][i].update(other)


def claim(**other: Any) -> Change:
    return lambda content: content["claims"][0].update(other)


def restated(**other: Any) -> Change:
    return lambda content: content["claims"][0]["restated"].update(other)


def without(i: int, name: str) -> Change:
    def change(content: Content) -> None:
        del content["findings"][i]["metrics"][name]

    return change


def dropped(i: int) -> Change:
    """The finding is neither there nor cited, and all others are renumbered."""

    def change(content: Content) -> None:
        del content["findings"][i]
        one = content["claims"][0]
        for holder, key in [(one, "because"), *((p, "findings") for p in one["premises"])]:
            holder[key] = [j - (j > i) for j in holder[key] if j != i]
        if one["decisive"] is not None:
            one["decisive"] -= one["decisive"] > i

    return change


def other_links(content: Content) -> None:
    content["threat_models"][0]["links"] = content["threat_models"][0]["links"][1:]


def void(content: Content) -> None:
    """What is declared is void, as an audit says it; the words of the notes are not compared."""
    infinite = {"value": "inf", "low": 0.0, "high": "inf"}
    one = content["claims"][0]
    content["findings"][7].update(void="so", releases={})
    content["findings"][7]["metrics"]["epsilon"] = infinite
    one["restated"].update(void="so", epsilon=infinite)
    one["codes"] = ["DPA113", "DPA121"]
    one.update(verdict="underpowered", decisive=None, meaning="")
    one["reason"] = SAYS["DPA113"]


CUT: dict[str, tuple[str, Change, str]] = {
    "metrics of a test": ("function", finding(1, metrics={}), "findings[1]"),
    "p-value of a test": ("function", without(1, "p-value"), "findings[1]"),
    "bound of a control": ("function", without(2, "epsilon lower bound"), "findings[2]"),
    "a distance": ("supported", without(2, "measured"), "findings[2]"),
    "a ratio": ("supported", without(2, "measured over stated"), "findings[2]"),
    "what was found": ("supported", without(4, "found"), "findings[4]"),
    "noise of the run": ("supported", finding(5, metrics={}), "findings[5]"),
    "p-value of noise": ("supported", without(5, "p-value"), "findings[5]"),
    "rounds of the state": ("supported", finding(6, metrics={}), "findings[6]"),
    "what is declared": ("supported", finding(7, metrics={}), "findings[7]"),
    "delta of it": ("supported", without(7, "delta"), "findings[7]"),
    "rate": ("supported", without(8, "declared sampling rate"), "findings[8]"),
    "rate of batches": ("supported", without(8, "sampling rate"), "findings[8]"),
    "adjacency": ("supported", finding(2, adjacency=None), "findings[2]"),
    "claim of the noise": ("supported", finding(1, claim=None), "findings[1]"),
    "all of the leak": ("supported", finding(0, metrics={}), "findings[0]"),
    "all of an alignment": ("supported", finding(3, metrics={}), "findings[3]"),
    "claim of the leak": ("supported", finding(0, claim=None), "findings[0]"),
    "adversary of it": ("supported", finding(0, threat_model=None), "findings[0]"),
    "world of a test": ("function", finding(1, world=None), "findings[1]"),
    "state": ("supported", dropped(6), "claims.because"),
    "records": ("supported", dropped(8), "claims.because"),
    "test of a function": ("function", dropped(1), "claims.because"),
    "restated": ("supported", claim(restated=None), "claims"),
    "range": ("supported", claim(range=None), "claims"),
    "codes": ("supported", claim(codes=[]), "claims.codes"),
}
ADDED: dict[str, tuple[str, Change, str]] = {
    "verdict of a test": ("function", finding(1, verdict="refuted"), "findings[1]"),
    "verdict of the state": ("supported", finding(6, verdict="unsupported"), "findings[6]"),
    "refuting noise": ("supported", finding(5, verdict="refuted"), "findings[5]"),
    "what a test missed": ("function", finding(1, not_examined=["x"]), "findings[1]"),
    "what an alignment missed": ("supported", finding(3, not_examined=["x"]), "findings[3]"),
    "void": ("supported", restated(void="so"), "claims.restated"),
    "void of a program": ("captured", restated(void="so"), "claims.restated"),
    "void of what is declared": ("supported", finding(7, void="so"), "claims.restated"),
    "code of void": ("supported", claim(codes=["DPA141", "DPA121"]), "claims.codes"),
    "code of a limit": ("supported", claim(codes=["DPA141", "DPA119"]), "claims.codes"),
    "another reason": ("captured", claim(codes=["DPA101"]), "claims.codes"),
    "words of a reason": ("supported", claim(reason="All is well."), "reason"),
    "another sentence": ("supported", claim(sentence="All is well."), "sentence"),
    "a bound by accounting": ("unsupported", claim(meaning="1-fold, by accounting"), "meaning"),
    "no bound": ("supported", claim(meaning="nothing bounds it"), "meaning"),
    "what decides": ("supported", claim(decisive=0), "claims.decisive"),
    "nothing decides": ("supported", claim(decisive=None), "claims.decisive"),
    "notes": ("supported", lambda content: content["notes"].append("x"), "notes"),
    "links": ("supported", other_links, "threat_models"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_gallery_lacks_nothing_that_audits_keep(name: str) -> None:
    assert where(of(name)) == []


@pytest.mark.parametrize("name, change, place", CUT.values(), ids=CUT)
def test_what_is_cut_out_is_missed(name: str, change: Change, place: str) -> None:
    content = of(name)
    change(content)
    assert place in where(content)


@pytest.mark.parametrize("name, change, place", ADDED.values(), ids=ADDED)
def test_what_no_evidence_bears_is_named(name: str, change: Change, place: str) -> None:
    content = of(name)
    change(content)
    assert place in where(content)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_status_of_a_premise_is_believed(name: str) -> None:
    content = of(name)
    assert is_believed(content, name)
    for i, premise in enumerate(content["claims"][0]["premises"]):
        for status in {"examined", "not examined", "failed"} - {premise["status"]}:
            other = copy.deepcopy(content)
            other["claims"][0]["premises"][i]["status"] = status
            assert not is_believed(other, name)


@pytest.mark.parametrize(
    "change, place",
    [
        (restated(void=None), "claims.restated"),
        (restated(void="otherwise"), "claims.restated"),
        (restated(epsilon={"value": 1.0, "low": 0.0, "high": 1.0}), "claims.restated"),
        (finding(7, void=None), "claims.restated"),
        (finding(0, void="otherwise"), "exact-leak"),
        (claim(codes=["DPA113"]), "claims.codes"),
    ],
)
def test_a_void_figure_is_void_wherever_it_stands(change: Change, place: str) -> None:
    content = of("supported")
    void(content)
    assert where(content) == []
    change(content)
    assert place in where(content)


def test_a_falsified_claim_is_void() -> None:
    """Noise that is not what is asked for takes back what is declared."""
    content = of("unsupported")
    content["findings"][15]["verdict"] = "unsupported"
    assert "claims.void" in where(content)


def test_an_infinite_figure_is_not_taken_back() -> None:
    content = of("supported")
    void(content)
    for metrics in (content["findings"][7]["metrics"], content["claims"][0]["restated"]):
        metrics["epsilon"] = {"value": "inf", "low": "inf", "high": "inf"}
    assert where(content) == []
    content["claims"][0]["restated"]["void"] = None
    content["claims"][0]["codes"] = ["DPA113"]
    assert where(content) == []


@pytest.mark.parametrize("role", [*FIGURES, "noise", "records"])
def test_findings_without_figures_say_why(role: str) -> None:
    own: Content = {"role": role, "claim": 0, "threat_model": "a", "metrics": {}, "notes": ["x"]}
    own |= {"verdict": None, "releases": {}, "evidence": {}, "series": {}, "not_examined": []}
    own["adjacency"] = "add-remove"
    own["attack"] = None if role == "noise" else "canaries"
    own["world"] = "no-defense" if role == "positive-control" else "defense"
    assert ("it has no figures" in differing(own)) == (
        role in ("declared", "measured", "sensitivity", "dependence", "alignment", "state")
        or role in CONTROLS
    )
    assert "it has no figures" in differing(own | {"notes": []})
    assert "it has no figures" in differing(own | {"series": {"round": [1]}})


def test_agents_that_nobody_drew_are_named() -> None:
    """Two colluders of the drawing by the seed, and two others, coherent everywhere."""
    content = of("supported")
    config, links = content["config"], [tuple(link) for link in content["graph"]["links"]]
    n, [shown] = config["data"]["n_agents"], content["threat_models"]
    asked = ThreatModel(name=shown["name"], kind="colluding", drawn=2)
    drawn = asked.with_agents(config["seed"], n)
    others = tuple(i for i in range(n) if i not in drawn.agents)[:2]
    for agents, found in ((drawn.agents, []), (others, ["threat_models"])):
        model = drawn.model_copy(update={"agents": agents})
        config["threat_model"] = [model.model_dump(mode="json")]
        read = [list(link) for link in links if model.sees(*link)]
        shown.update(agents=list(agents), links=read, sentence=model.sentence())
        assert where(content) == found


def test_the_words_of_reasons_are_those_of_the_rules() -> None:
    """Each stands in the sentences of the rules; strings there may go over two lines."""
    text = (ROOT / "dpaudit" / "pipeline" / "rules.py").read_text("utf-8")
    text = re.sub(r'"\s+f?"', "", text)
    assert [code for code, words in SAYS.items() if words not in text] == []
