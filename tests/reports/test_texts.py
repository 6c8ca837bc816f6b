"""Recovered text on the page: token by token, marked, escaped, beside blind and the exact leak."""

import json
from pathlib import Path

import pytest

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.html import render
from dpaudit.reports.texts import text_scenarios, text_sequences
from tests.reports.pages import HOSTILE, Page, with_findings

PATH = "artifacts/text.json"


def finding(world: str, recovered: list[str], folder: Path, path: str = PATH) -> Finding:
    """What was recovered of a sequence, and its artifact."""
    name = path.replace("text", world)
    sequence = {"truth": ["a", HOSTILE], "recovered": recovered}
    (folder / "artifacts").mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps([{"agent": 1, "sequences": [sequence]}]))
    return Finding(
        role=Role.TEXT_RECOVERY,
        kind="reconstruction",
        title="text from x",
        attack="dager",
        threat_model="eavesdropper",
        message="x",
        rounds=(2,),
        world=world,  # type: ignore[arg-type]
        batch_size=1,
        metrics={Name.TOKENS_RECOVERED: Metric(value=0.5, n=1)},
        artifacts={"text": name},
    )


def test_tokens_are_marked_by_word_and_sign_and_escaped(
    golden: AuditResult, tmp_path: Path
) -> None:
    worlds = {"defense": ["a", "b"], "no-defense": ["a", HOSTILE], "blind": ["b", "a"]}
    findings = [finding(world, text, tmp_path) for world, text in worlds.items()]
    html = render(with_findings(golden, *findings), tmp_path)
    assert "<script>hacked" not in html
    section = Page(html).by_id("text")
    tokens = [e for e in section.every("span") if "token" in e.classes()][2:]  # two explain
    assert [e.text()[0] for e in tokens] == ["✓", "✓", "✓", "✗", "✗", "✗"]
    assert [("is-right" in e.classes()) for e in tokens] == [True, True, True, False, False, False]
    assert HOSTILE.split()[0] in section.text()


def test_the_first_screen_says_how_much_text_was_recovered(
    golden: AuditResult, tmp_path: Path
) -> None:
    findings = [finding(world, ["a", "b"], tmp_path) for world in ("defense", "blind")]
    page = Page(render(with_findings(golden, *findings), tmp_path))
    said = "50% of tokens at their place, 50% by a blind guess"
    assert said in page.root.text()


def test_an_exact_leak_stands_below_the_text(tmp_path: Path) -> None:
    leak = Finding(
        role=Role.EXACT_LEAK, kind="accounting", title="leak", threat_model="eavesdropper"
    )
    (scenario,) = text_scenarios([finding("defense", ["a", "b"], tmp_path), leak], tmp_path)
    assert scenario.exact_leak == [leak]


def test_an_agent_is_followed_round_after_round(golden: AuditResult, tmp_path: Path) -> None:
    """Rounds in their order, each with the truth and every world; one round is no sequence."""
    findings = []
    for k, recovered in ((3, ["b", "a"]), (2, ["a", "b"])):
        for world in ("defense", "blind"):
            one = finding(world, recovered, tmp_path, f"artifacts/text-{k}.json")
            findings.append(one.model_copy(update={"rounds": (k,)}))
    leak = Finding(
        role=Role.EXACT_LEAK,
        kind="accounting",
        title="leak of the view",
        threat_model="eavesdropper",
        metrics={Name.EPSILON: Metric(value=7.25)},
    )
    page = Page(render(with_findings(golden, *findings, leak), tmp_path))
    (table,) = [t for t in page.by_id("text").every("table") if "rounds" in t.classes()]
    rows = list(table.every("tr"))
    assert [next(row.every("th")).text() for row in rows[1:3]] == ["2", "3"]
    signs = [[e.text()[0] for e in row.every("span") if "token" in e.classes()] for row in rows]
    assert signs[1:3] == [["✓", "✗"] * 2, ["✗", "✗"] * 2]
    assert "7.25" in rows[3].text()
    (one,) = text_scenarios(findings[:2], tmp_path)
    assert text_sequences([one]) == []


def test_a_comparison_shows_text_with_little_and_much_noise(
    golden: AuditResult, tmp_path: Path
) -> None:
    runs = []
    for name, recovered in (("little", ["a", HOSTILE]), ("much", ["b", "b"])):
        (folder := tmp_path / name).mkdir()
        runs.append((name, with_findings(golden, finding("defense", recovered, folder)), folder))
    html = render_comparison(runs)
    assert "<script>hacked" not in html
    section = Page(html).by_id("text")
    tokens = [e for e in section.every("span") if "token" in e.classes()][2:]  # two explain
    assert [e.text()[0] for e in tokens] == ["✓", "✓", "✗", "✗"]


@pytest.mark.parametrize("content", ["", "[", "3", '[{"sequences": [{"truth": [1]}]}]'])
def test_damaged_text_is_said_on_the_page(tmp_path: Path, content: str) -> None:
    one = finding("defense", ["a", "b"], tmp_path)
    (tmp_path / one.artifacts["text"]).write_text(content)
    (scenario,) = text_scenarios([one], tmp_path)
    assert scenario.rows[0].problem == "artifacts/defense.json: damaged"
    (tmp_path / one.artifacts["text"]).unlink()
    (scenario,) = text_scenarios([one], tmp_path)
    assert scenario.rows[0].problem.endswith("missing, or too large to show")


def test_text_outside_of_the_run_is_not_read(tmp_path: Path) -> None:
    one = finding("defense", ["a", "b"], tmp_path)
    outside = one.model_copy(update={"artifacts": {"text": "../text.json"}})
    with pytest.raises(DpauditError):
        text_scenarios([outside], tmp_path)
