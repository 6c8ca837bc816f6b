"""Figures on epsilon: what is drawn where, nothing that is not a number, no text that is code."""

import math
from html.parser import HTMLParser

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpaudit.files.finding import KINDS, Finding, Metric, Role
from dpaudit.reports.figures import drawing
from dpaudit.reports.figures.evidence import DARKEST, accounting_figures, empirical_figures

TEXTS = {0: "claim", 1: "other"}
INF, NAN = math.inf, math.nan
HOSTILE = "\"><script>alert('1')</script>' $\\frac{$ <!-- ]]>"
SERIES = {
    "false positive rate": (0.0, 0.25, 0.25, 0.5, 1.0),
    "false negative rate": (0.9, 0.5, 0.6, 0.2, 0.0),
    "least that the claim allows": (0.9, 0.4, 0.4, 0.1, 0.0),
}


def metrics(**values: float) -> dict[str, Metric]:
    return {name.replace("_", " "): Metric(value=x) for name, x in values.items()}


def evidence(claim: int = 0, adversary: str = "eve", high: float = 5.0) -> list[Finding]:
    """All that a likelihood-ratio attack and the accountant find on one claim."""
    shared = {"threat_model": adversary, "attack": "likelihood-ratio", "claim": claim}
    bound = metrics(epsilon_lower_bound=1.5, claimed_epsilon=2.0, ceiling=4.0)
    null, positive = (bound | metrics(epsilon_lower_bound=x) for x in (0.0, 3.5))
    epsilon = {"epsilon": Metric(value=high, low=3.0, high=high)}
    exact = {"series": {"round": (1, 2, 3), "mu": (1.0, INF, 0.5)}, "metrics": epsilon}
    return [
        finding(Role.TEST, metrics=bound, series=SERIES, **shared),
        finding(Role.NULL_CONTROL, metrics=null, **shared),
        finding(Role.POSITIVE_CONTROL, metrics=positive, **shared),
        finding(Role.EXACT_LEAK, **exact, **shared),
        finding(Role.DECLARED, claim=claim, threat_model=adversary, metrics=epsilon),
    ]


def finding(role: Role, **fields: object) -> Finding:
    return Finding(**{"role": role, "kind": KINDS[role], "title": "t", **fields})


def matrix(**changes: object) -> Finding:
    series = {"adversary": (0, 0, 1, 1), "victim": (1, 2, 0, 2), "mu": (1.0, 0.001, INF, 0.1)}
    return finding(Role.WHO_LEARNS_WHAT, **({"series": series} | changes))


@pytest.fixture
def painted(monkeypatch):
    """The axes of each drawing, in the place of its SVG."""
    every = []

    def keep(name, title, inches, paint, caption, rows):
        axes = Figure(figsize=inches).subplots()
        paint(axes)
        every.append(axes)
        return drawing.DrawnFigure(caption, Markup("drawn"), list(rows))

    monkeypatch.setattr(drawing, "draw", keep)
    return every


def lines(axes) -> dict[str, list[tuple[list[float], list[float]]]]:
    found: dict[str, list[tuple[list[float], list[float]]]] = {}
    for line in axes.get_lines():
        points = [list(map(float, line.get_data()[i])) for i in (0, 1)]
        found.setdefault(line.get_label(), []).append(tuple(points))
    return found


def test_every_number_on_a_claim_stands_at_its_place(painted) -> None:
    assert (
        len([*empirical_figures(evidence(), "a", TEXTS)]) == 2
    )  # the bounds and a trade-off curve
    drawn = lines(painted[0])
    assert drawn["certified lower bound"] == [([1.5], [0.0])]
    assert drawn["claim"] == [([2.0], [0.0])]
    assert drawn["ceiling of these runs"] == [([0.0, 4.0], [0.0, 0.0])]
    assert drawn["null control"][0][0] == [0.0]
    assert drawn["positive control"][0][0] == [3.5]
    assert drawn["accounting of the declared noise"][0][0] == [3.0, 5.0]
    assert drawn["leak of the view"][0][0] == [3.0, 5.0]


def test_an_infinite_epsilon_is_an_arrow_at_the_edge(painted) -> None:
    list(empirical_figures(evidence(high=INF), "a", TEXTS))
    axes = painted[0]
    (low, far), _ = lines(axes)["accounting of the declared noise"][0]
    assert (low, far) == (3.0, 1.25 * 4.0)
    arrows = [line for line in axes.get_lines() if line.get_marker() == ">"]
    assert [float(line.get_xdata()[0]) for line in arrows] == [5.0, 5.0]
    assert axes.get_xlim()[1] > far


def test_claims_of_one_adversary_share_a_figure(painted) -> None:
    findings = [*evidence(), *evidence(1, high=7.0), *evidence(0, "bob", high=9.0)]
    captions = [figure.caption for figure in empirical_figures(findings, "x", TEXTS)]
    assert [c.split(":")[0].split(".")[0] for c in captions] == [
        "Epsilon certified against eve", "claim", "other", "Epsilon certified against bob", "claim",
    ]  # fmt: skip
    of_eve, of_bob = painted[0], painted[3]
    highs = [x[1] for x, _ in lines(of_eve)["accounting of the declared noise"]]
    assert highs == [5.0, 7.0]
    assert [y[0] for _, y in lines(of_eve)["certified lower bound"]] == [0.0, 1.0]
    assert [x[1] for x, _ in lines(of_bob)["accounting of the declared noise"]] == [9.0]
    legend = [text.get_text() for text in of_eve.get_legend().get_texts()]
    assert len(legend) == len(set(legend))


def test_the_tradeoff_curve_is_the_best_error_up_to_each_rate(painted) -> None:
    list(empirical_figures(evidence(), "a", TEXTS))
    axes = painted[1]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (measured,), (claimed,) = lines(axes)["measured"], lines(axes)["claimed"]
    edge = 0.1  # half of the smallest rate above 0
    assert measured[0] == [edge, 0.25, 0.25, 0.5, 1.0]
    assert measured[1] == [0.9, 0.5, 0.5, 0.2, edge]
    assert claimed[1] == pytest.approx([0.9, 0.4, 0.4, 0.1, edge / 10])
    (step,) = (line for line in axes.get_lines() if line.get_label() == "measured")
    assert step.get_drawstyle() == "steps-post"
    assert axes.get_ylim()[0] > edge / 10
    (guess,) = lines(axes)["guessing"]
    assert [x + y for x, y in zip(*guess, strict=True)] == pytest.approx([1.0] * len(guess[0]))


def test_mu_by_round_marks_what_is_infinite(painted) -> None:
    (figure,) = accounting_figures(evidence(), "a")
    assert [row["mu"] for row in figure.rows] == [1.0, INF, 0.5]
    assert figure.caption.startswith("Leak by round of the view of eve")
    drawn = lines(painted[0])
    assert drawn["mu"] == [([1.0, 3.0], [1.0, 0.5])]
    assert drawn["infinite: shown without noise"][0][0] == [2.0]
    assert painted[0].get_ylim()[1] > drawn["infinite: shown without noise"][0][1][0]


def test_a_leak_that_several_claims_share_is_drawn_once() -> None:
    findings = [*evidence(), *evidence(1), *evidence(0, "bob")]
    assert len(accounting_figures(findings, "x")) == 2


def test_the_matrix_has_a_cell_for_each_pair(painted) -> None:
    (figure,) = accounting_figures([matrix()], "a")
    assert figure.rows[1] == {"adversary": 0, "victim": 2, "mu": 0.001}
    assert figure.caption.startswith("Who learns what")
    (axes,) = painted
    cells = {
        (p.get_x() + 0.5, p.get_y() + 0.5): p for p in axes.patches if isinstance(p, Rectangle)
    }
    written = {t.get_position(): t.get_text() for t in axes.texts}
    assert written == {(1, 0): "1.00", (2, 0): "0.001", (0, 1): "∞", (2, 1): ".10"}
    opacity = {place: cell.get_alpha() for place, cell in cells.items()}
    assert opacity[1, 0] == DARKEST
    assert opacity[2, 1] == pytest.approx(DARKEST * 2 / 3)
    assert opacity[2, 0] == pytest.approx(0.0)
    assert cells[0, 1].get_facecolor()[:3] != cells[1, 0].get_facecolor()[:3]
    assert set(cells) == {*written, (0, 0), (1, 1), (2, 2)}


@pytest.mark.parametrize("bad", [NAN, INF, 0.0])
def test_what_is_not_finite_breaks_no_drawing(bad) -> None:
    series = {name: (bad,) * 5 for name in SERIES}
    test, *others = evidence()
    test = test.model_copy(
        update={
            "series": series,
            "metrics": metrics(epsilon_lower_bound=bad, claimed_epsilon=bad, ceiling=bad),
        }
    )
    list(empirical_figures([test, *others], "a", TEXTS))
    list(empirical_figures([test], "a", TEXTS))
    round = {"round": (1,), "mu": (bad,)}
    leak = others[2].model_copy(update={"series": round})
    assert len(accounting_figures([leak], "a")) == (0 if math.isnan(bad) else 1)
    pair = matrix(series={"adversary": (0,), "victim": (1,), "mu": (bad,)})
    assert len(accounting_figures([pair], "a")) == 1


def test_findings_without_series_or_bounds_have_no_figure() -> None:
    test, *_ = evidence()
    bare = test.model_copy(update={"series": {}})
    assert len([*empirical_figures([bare], "a", TEXTS)]) == 1
    assert not list(empirical_figures([test.model_copy(update={"metrics": {}})], "a", TEXTS))
    assert accounting_figures([evidence()[4]], "a") == []
    empty = matrix(series={"adversary": (), "victim": (), "mu": ()})
    assert accounting_figures([empty], "a") == []


def drawings(*findings: Finding, texts: dict[int, str] = TEXTS) -> list[str]:
    figures = [*empirical_figures(findings, "a", texts), *accounting_figures(findings, "b")]
    return [str(figure.drawing) for figure in figures]


def test_a_drawing_is_the_same_to_the_byte() -> None:
    first, again = (drawings(*evidence(), matrix()) for _ in range(2))
    assert first == again
    assert len(first) == 4
    assert drawings(*evidence(), matrix(title="other"))[3] != first[3]


def test_hostile_text_stays_text() -> None:
    class Tags(HTMLParser):
        def __init__(self, svg: str) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.said: list[str] = []
            self.feed(svg)

        def handle_starttag(self, tag, attrs) -> None:
            assert not any(name.startswith("on") for name, _ in attrs)
            self.tags.append(tag)

        def handle_data(self, data) -> None:
            self.said.append(data)

    found = (*evidence(0, HOSTILE), matrix(title=HOSTILE))
    for svg in drawings(*found, texts={0: HOSTILE}):
        page = Tags(svg)
        assert "script" not in page.tags
        assert HOSTILE in " ".join(page.said)
