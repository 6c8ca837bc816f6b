"""What attacks choose between, on either side of each limit, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.accounting.releases import Release
from dpaudit.attacks.canaries import bound
from dpaudit.attacks.gradient_inversion import attack as inversion
from dpaudit.attacks.gradient_inversion import exact, plan
from dpaudit.attacks.gradient_inversion.local import disagreement
from dpaudit.attacks.likelihood_ratio import attack as ratio
from dpaudit.attacks.likelihood_ratio import runs
from dpaudit.attacks.likelihood_ratio.attack import LikelihoodRatio
from dpaudit.attacks.mutual_information import attack as information
from dpaudit.attacks.sensitivity import alignment, message_laws
from dpaudit.attacks.sensitivity.world_cache import KEPT_ANSWERS, KeptAnswers
from dpaudit.attacks.shadow_models.shadows import statistics
from dpaudit.attacks.text import span
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Reaction
from dpaudit.game.runs.play import ScoredRuns, Worlds

NOTHING: Any = None
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")


@pytest.mark.parametrize("zero", [0.5, 3.0, 7.5])
def test_the_least_factor_is_rounded_up(zero: float) -> None:
    """By twice what the root may be off by, of the power of two above it."""
    above = {0.5: 1.0, 3.0: 4.0, 7.5: 8.0}[zero]
    found = bound._least_beyond(lambda x: x - zero)
    assert found == pytest.approx(zero + 2 * bound.NEAR * above, abs=1e-9)


def test_a_factor_beyond_the_largest_is_not_looked_for() -> None:
    asked: list[float] = []
    found = bound._least_beyond(lambda x: (asked.append(x), -1.0)[1])
    assert bound.MOST_FACTOR <= found < 2 * bound.MOST_FACTOR
    assert asked == [2.0**i for i in range(len(asked))]


@pytest.mark.parametrize(
    ("own", "every", "expected"),
    [
        (None, None, (2.0, None, None)),
        (Reaction(1, 2), (3.0, None), (2.0, 2.0, 3.0)),
        (Reaction(1, 2), (1.0, None), (2.0, 2.0, 2.0)),
        (Reaction(1, 2), (3.0, Reaction(1, 2)), (2.0, 2.0, inf)),
    ],
)
def test_mu_of_canaries_has_an_upper_end_where_agents_react(
    monkeypatch, own, every, expected
) -> None:
    def adversary(mu: float, reacts: Any) -> Any:
        leak = SimpleNamespace(by_round=torch.tensor([mu / 2, mu]))
        return SimpleNamespace(
            leak=leak, reacts=reacts, threat_model=EAVESDROPPER, game=None, n_rounds=4
        )

    def made(game: Any, view: ThreatModel, n_rounds: int) -> Any:
        assert (view.reads_every_link, n_rounds) == (True, 4)
        return adversary(*every)

    monkeypatch.setattr(bound, "Adversary", made)
    metric, notes = bound._by_algebra(adversary(2.0, own))
    assert (metric.value, metric.low, metric.high) == expected
    assert len(notes) == (0 if own is None else 2)


def test_directions_with_most_zeros_are_chosen_first() -> None:
    """As many independent ones as there are; of equals the first; at most one for each record."""
    e1, e2, e3 = torch.eye(3)
    both = torch.nn.functional.normalize(e1 + e2, dim=0)
    one = exact._Pool(torch.stack([e1, both]), torch.tensor([0.2, 0.5]))
    other = exact._Pool(torch.stack([e2, e3, e1]), torch.tensor([0.9, 0.5, 0.5]))
    found = exact._sparsest(one, other)
    assert torch.equal(found.q, torch.stack([e2, both, e3]))
    assert found.zeros.tolist() == pytest.approx([0.9, 0.5, 0.5])
    few = exact._sparsest(exact._Pool(torch.stack([e1, -e1, e2]), torch.tensor([0.1, 0.3, 0.2])))
    assert torch.equal(few.q, torch.stack([-e1, e2]))
    near = torch.nn.functional.normalize(e1 + 0.5 * exact._NEW * e2, dim=0)
    far = torch.nn.functional.normalize(e1 + 2 * exact._NEW * e2, dim=0)
    for second, n in ((near, 1), (far, 2)):
        pool = exact._Pool(torch.stack([e1, second]), torch.tensor([0.5, 0.4]))
        assert len(exact._sparsest(pool).q) == n


def worlds(without: list[float], there: list[float], features: int = 1) -> Worlds:
    return Worlds(
        *(ScoredRuns(np.array(x), np.zeros((len(x), features))) for x in (without, there))
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "by_ratio", "by_learned", "is_learned"),
    [
        (1.0, 1.0, 1.4, False),
        (1.0, 1.0, 1.5, False),
        (1.0, 1.0, 1.6, True),
        (0.0, 1.0, 0.5, True),  # no ratio is known
        (0.0, 1.0, 1.6, True),
    ],
)
def test_a_learned_score_must_certify_clearly_more(
    monkeypatch, scores, by_ratio, by_learned, is_learned
) -> None:
    held_out = (np.array([7.0]), np.array([8.0]))
    monkeypatch.setattr(runs, "cross_fitted", lambda training: held_out)
    monkeypatch.setattr(runs, "LearnedScore", lambda training: lambda scored: scored.scores + 10)

    def certified(without: Any, there: Any, delta: float, alpha: float, rng: str) -> Any:
        assert (delta, alpha, rng) == (1e-5, 0.05, "choice of score")
        return SimpleNamespace(value=by_learned if without is held_out[0] else by_ratio)

    monkeypatch.setattr(runs, "from_scores", certified)
    streams: Any = SimpleNamespace(numpy=lambda name: name)
    training = worlds([0.0, scores], [scores, 0.0])
    found = runs.RunScore.of(1e-5, training, streams)
    assert (found.learned is not None) is is_learned
    assert found.choosing[0] is (held_out[0] if is_learned else training.scores[0])
    counted = found(worlds([1.0], [2.0]))
    assert [x.tolist() for x in counted] == ([[11.0], [12.0]] if is_learned else [[1.0], [2.0]])
    bare = worlds([0.0], [0.0], features=0)
    assert runs.RunScore.of(1e-5, bare, streams).learned is None
    assert runs._is_known(worlds([0.0], [0.0, 1.0]))
    assert not runs._is_known(worlds([0.0], [0.0]))


@pytest.mark.parametrize(
    ("trials", "n_rounds", "game", "expected"),
    [
        (None, None, "game", (ratio.USUAL, None)),
        (500, None, "game", (500, None)),
        (500, 3, "game", (500, 3)),
        (0, 3, "game", (ratio.NOISE_RUNS, 3)),
        (0, None, "game", (ratio.NOISE_RUNS, 5)),
        (0, None, None, (ratio.NOISE_RUNS, None)),
    ],
)
def test_rounds_of_an_exact_leak_are_those_that_are_followed(
    monkeypatch, trials, n_rounds, game, expected
) -> None:
    def changed(one: Any, **of: Any) -> Any:
        return SimpleNamespace(**{**vars(one), **of})

    monkeypatch.setattr(ratio, "replace", changed)
    monkeypatch.setattr(ratio, "as_seen_by", lambda threat_model, defense: defense)
    monkeypatch.setattr(
        ratio, "QuestionContext",
        lambda context, threat_model, trials, first, *_: SimpleNamespace(
            trials=trials, first_rounds=first, context=context
        ),
    )  # fmt: skip
    monkeypatch.setattr(ratio, "_largest_game", lambda asking: game)
    followed = SimpleNamespace(followed=lambda n: n // 2)
    monkeypatch.setattr(ratio, "GameShape", SimpleNamespace(of=lambda game, view: followed))
    attack = LikelihoodRatio(trials=trials, n_rounds=n_rounds)
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=10))
    asking = attack._asking(context, EAVESDROPPER)
    assert (asking.trials, asking.first_rounds) == expected


@pytest.mark.parametrize("wherever", [False, True])
def test_laws_are_compared_where_all_plays_fit(monkeypatch, wherever: bool) -> None:
    """Batches of 5 records of 3 agents, each with 7 numbers, of two worlds or of two plays of each."""
    numbers = 4 * (1 + wherever) * message_laws.PLAYS * 5 * 3 * 7
    here: Any = SimpleNamespace(
        oracle=SimpleNamespace(batch_size=5), state=[torch.zeros(3, 7)],
        coupled=SimpleNamespace(setting=SimpleNamespace(d=7)),
    )  # fmt: skip
    asked: list[Any] = []
    monkeypatch.setattr(message_laws, "_sums", lambda *of: (asked.append(of[2:]), {})[1])
    monkeypatch.setattr(message_laws, "_plays", lambda *of: (asked.append(of[2:]), iter([]))[1])
    monkeypatch.setattr(message_laws, "_p_value", lambda scores: 1.0)
    for most, found in ((numbers, []), (numbers - 1, None)):
        monkeypatch.setattr(message_laws, "MOST", most)
        assert message_laws.of_another_law(here, here, ["x"], wherever) == found
    assert asked == [(["x"], wherever), ("compared", ["x"], wherever)]
    monkeypatch.setattr(message_laws, "MOST", numbers)
    for p, names in ((message_laws.LEVEL, ["x", "y"]), (message_laws.LEVEL * 1.01, [])):
        monkeypatch.setattr(message_laws, "_p_value", lambda scores, p=p: p)
        assert message_laws.of_another_law(here, here, ["x", "y"], wherever) == names


def test_scores_of_two_worlds_are_lengths_and_parts(monkeypatch) -> None:
    """From the middle of the means of both worlds, in sums of all their plays."""
    here: Any = SimpleNamespace(
        oracle=SimpleNamespace(batch_size=1), state=[torch.zeros(1, 2)],
        coupled=SimpleNamespace(setting=SimpleNamespace(d=2)),
    )  # fmt: skip
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    monkeypatch.setattr(
        message_laws, "_sums", lambda *_: {"x": (message_laws.PLAYS * one, message_laws.PLAYS * other)}
    )  # fmt: skip
    payloads = torch.tensor([[5.0, 4.0]]), torch.tensor([[2.0, 1.0]])
    monkeypatch.setattr(message_laws, "_plays", lambda *_: iter([{"x": payloads}]))
    kept: list[Any] = []
    monkeypatch.setattr(message_laws, "_p_value", lambda scores: (kept.extend(scores), 1.0)[1])
    assert message_laws.of_another_law(here, here, ["x"]) == []
    [(first, second)] = kept
    assert first.tolist() == [9 + 16, 3 * 2 * message_laws.PLAYS]
    assert second.tolist() == [0 + 1, 0.0]


def test_nothing_left_behind_a_rank_is_no_noise() -> None:
    """Zeros behind the rank, as wide as what is left of the directions."""
    S = torch.tensor([5.0, 4.0, *[0.0] * 10], dtype=torch.float64)
    assert span._rank_in_noise(S, 14, 12, None) == 2
    assert span._rank_in_noise(S, 40, 12, None) == 2
    short = torch.tensor([5.0] * 8, dtype=torch.float64)
    assert span._rank_in_noise(short, 14, 12, None) == 8  # too few to tell


def test_the_last_answers_to_a_question_are_kept() -> None:
    """Each is asked for once; of more models than are kept the first is forgotten."""
    asked: list[float] = []

    class Counted(KeptAnswers):
        def _answered(self, X: Tensor, *of: Any) -> Tensor:
            asked.append(float(X[0, 0]))
            return 2 * X

    oracle: Any = object.__new__(Counted)
    for name, value in {
        "answers": {},
        "steps": {},
        "shared": None,
        "victim": None,
        "bare": [],
    }.items():
        object.__setattr__(oracle, name, value)

    def ask(x: float, clip_norm: float = 1.0, holders: Any = None, norm: int = 2) -> float:
        X = torch.full((2, 3), x)
        return float(oracle.clipped_sum(X, clip_norm, holders, norm)[0, 0])

    for x in (1.0, 2.0, 1.0, 3.0, 4.0, 2.0):
        assert ask(x) == 2 * x
    assert asked == [1.0, 2.0, 3.0, 4.0]
    assert len(oracle.answers[1.0, 2, None]) == KEPT_ANSWERS
    ask(5.0)
    ask(2.0)
    assert asked == [1.0, 2.0, 3.0, 4.0, 5.0]
    ask(1.0)  # which is forgotten
    assert asked[-1] == 1.0
    for n, of in enumerate(((2.0,), (1.0, torch.tensor([0])), (1.0, None, 1)), 7):
        ask(5.0, *of)  # each is another question
        assert len(asked) == n
    assert oracle.bare == []
    ask(5.0, inf)
    assert oracle.bare == ["clipped_sum"]


def test_a_record_without_a_gradient_has_a_finite_log() -> None:
    """Records 0 and 1 are of the training set, 2 and 3 of the test set."""
    data = SimpleNamespace(
        x=torch.tensor([[0.0], [1.0]]), x_test=torch.tensor([[2.0], [3.0]]),
        y=torch.tensor([5, 6]), y_test=torch.tensor([7, 8]),
    )  # fmt: skip
    asked: list[Any] = []

    def log_odds(X: Tensor, inputs: Tensor, labels: Tensor, holders: Tensor) -> Tensor:
        asked.append((inputs[0, :, 0].tolist(), labels[0].tolist(), holders.tolist()))
        return torch.tensor([[0.5, -0.5]]).expand(len(X), -1)

    gradients = SimpleNamespace(
        log_odds=log_odds,
        norms=lambda X, *_, holders: torch.tensor([[0.0, 2.0]]).expand(len(X), -1),
    )
    problem: Any = SimpleNamespace(dataset=data, gradients=gradients)
    X, chosen = torch.zeros(3, 4), np.array([3, 1])
    alone = statistics(problem, X, chosen, False)
    assert alone.tolist() == [[[0.5], [-0.5]]] * 3
    assert asked == [([3.0, 1.0], [8, 6], [0, 0, 0])]
    both = statistics(problem, X, chosen, True)
    least = np.log(np.finfo(np.float32).tiny)
    assert both[0].tolist() == [[0.5, pytest.approx(least)], [-0.5, pytest.approx(np.log(2.0))]]
    assert (both.dtype, both.shape) == (np.float64, (3, 2, 2))


def test_a_single_pass_does_not_disagree() -> None:
    images = torch.arange(12.0).view(1, 4, 3)
    assert disagreement(images, 1).tolist() == [0.0]
    assert disagreement(images, 2).tolist() == [9.0]  # of means 3 and 9 of each pass


@pytest.mark.parametrize("contrast", [0.0, 5e-4, 2e-3, 0.1])
def test_total_variation_is_in_units_of_public_steps(contrast: float) -> None:
    """Of images without any step, in those of a thousandth."""
    observed: Any = SimpleNamespace(std=None, batch_size=4, local=None, secrets=None)
    task: Any = SimpleNamespace(
        contrast=contrast, shape=(1, 8, 8), gradients=SimpleNamespace(module=nn.Linear(2, 2))
    )
    patch = pytest.MonkeyPatch()
    patch.setattr(plan, "_too_many_unknowns", lambda *_: ())
    try:
        found = plan.plan(observed, task, mismatch="chord")
        flat = plan.plan(observed, task, mismatch="l1")
    finally:
        patch.undo()
    assert found.total_variation == pytest.approx(0.02 * 2 / max(contrast, 1e-3))
    assert flat.total_variation == 0.02


@pytest.mark.parametrize(
    ("rows", "owners"), [(3, [0, 1, 2]), (4, [0, 1, 1, 2]), (5, None), (0, None)]
)
def test_owners_of_draws_are_agents_or_senders(rows: int, owners: Any) -> None:
    graph = SimpleNamespace(n_agents=3, n_edges=4, senders=torch.tensor([0, 1, 1, 2]))
    network = SimpleNamespace(at=lambda k: graph)
    coupled = SimpleNamespace(setting=SimpleNamespace(network=network))
    world: Any = SimpleNamespace(coupled=coupled)
    assert alignment._owners(world, (), (1, "z"), rows) == owners


def test_moves_over_what_batches_allow_are_compared_in_order(monkeypatch) -> None:
    """The largest move with the batch that allows most; in turn as many as there are batches."""
    allowed = {(0, "gaussian"): [2.0, 1.0], (1, "laplace"): [4.0], (2, "gaussian"): []}
    monkeypatch.setattr(
        alignment, "_allowed", lambda coupled, agent, family, _: allowed[agent, family]
    )
    monkeypatch.setattr(alignment, "batches_of", lambda coupled, agent: 1)
    coupled: Any = SimpleNamespace(defense=SimpleNamespace(cyclic=False))

    def over(*rounds: dict[Any, float]) -> float:
        moves: Any = dict(enumerate(rounds, 1))
        return alignment.over_declared(coupled, moves, "add-remove")

    own, other = (0, "gaussian"), (1, "laplace")
    assert over({}) == 0.0
    assert over({own: 0.5}, {own: 1.0}) == 0.5
    assert over({own: 1.5}, {own: 1.0}) == 1.0
    assert over({own: 1.5}, {own: 1.2}) == 1.2
    assert over({own: 1.0}, {own: 0.5}, {own: 0.1}) == inf  # a third batch is not declared
    assert over({own: 1.0}, {own: 0.5}, {own: 0.0}) == 0.5
    assert over({own: 1.0, other: 3.0}) == 0.75
    assert over({(2, "gaussian"): 0.1}) == inf
    coupled.defense.cyclic = True
    assert over({own: 0.5}, {own: 1.0}, {own: 1.0}) == 0.5


@pytest.mark.parametrize(
    ("family", "n_batches", "found"),
    [
        ("gaussian", 4, [1.0, 0.5, 0.5, 0.5]),
        ("gaussian", 2, [1.25**0.5, 0.5**0.5]),
        ("gaussian", 3, [1.25**0.5, 0.5**0.5]),
        ("gaussian", 9, [1.0, 0.5, 0.5, 0.5]),
        ("laplace", 1, [inf]),
    ],
)
def test_a_batch_allows_its_part_of_the_releases(monkeypatch, family, n_batches, found) -> None:
    def release(of: Any, noise: float, count: int) -> Release:
        return Release(family=of, count=count, noise_multiplier=noise)

    most = release("gaussian", 2.0, 3), release("gaussian", 1.0, 1), release("laplace", 0.0, 1)
    setting = SimpleNamespace(holders=(0, 1))
    coupled: Any = SimpleNamespace(setting=setting, declared=lambda agent: most)
    monkeypatch.setattr(alignment, "batches_of", lambda coupled, agent: n_batches)
    assert alignment._allowed(coupled, 1, family, "add-remove") == pytest.approx(found)
    assert alignment._allowed(coupled, 2, family, "add-remove") == []


def test_the_share_of_moves_is_that_of_the_second_round(monkeypatch: Any) -> None:
    moves: dict[Any, Tensor] = {}
    monkeypatch.setattr(alignment, "replay", lambda *_: SimpleNamespace(moves=moves))
    here: Any = SimpleNamespace(k=3)
    assert alignment._carried(here, here) == 0.0
    moves.update({(3, "z"): torch.tensor([3.0]), (4, "z"): torch.tensor([0.0, 4.0])})
    assert alignment._carried(here, here) == 0.8
    moves.update({(3, "w"): torch.tensor([0.0, 4.0]), (4, "w"): torch.tensor([12.0])})
    assert alignment._carried(here, here) == pytest.approx(160**0.5 / (25 + 160) ** 0.5)


def images(m: int = 3, secrets: Any = None) -> tuple[Any, Any]:
    """Of the range from 2 to 10: its middle is 6, a half of it 4."""
    observed: Any = SimpleNamespace(models=torch.zeros(m, 5).double(), n_secrets=m, secrets=secrets)
    return observed, SimpleNamespace(shape=(1, 2, 2), value_range=(2.0, 10.0))


def test_searches_start_near_the_middle_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of half the range away, as normal numbers are, and inside of it."""
    observed, task = images()
    monkeypatch.setattr(inversion, "n_dummies", lambda observed: 2)
    found = inversion._starts(observed, task, 4, torch.Generator().manual_seed(0), 3)
    z = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).double()
    assert found.shape == (3, 4, 8)
    np.testing.assert_allclose(found.flatten(0, 1), 6 + 0.4 * z, rtol=1e-12)
    wide = SimpleNamespace(shape=(1, 30, 30), value_range=(2.0, 10.0))
    far: Any = inversion._starts(observed, wide, 40, Far(), 3)  # type: ignore[arg-type]
    assert (float(far.min()), float(far.max())) == (2.0, 10.0)


class Far:
    """A generator of which the numbers do not matter."""

    device = "cpu"


@pytest.fixture(autouse=True)
def normal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``Far`` some that are beyond any range."""
    own = torch.randn

    def randn(*of: Any, **how: Any) -> Tensor:
        if isinstance(how.get("generator"), Far):
            return 1e3 * torch.linspace(-1, 1, of[0][0] * of[0][1]).view(of[0])
        return own(*of, **how)

    monkeypatch.setattr(torch, "randn", randn)


def test_random_images_fill_the_range_alike_for_all() -> None:
    observed, task = images()
    found = inversion._dummies(observed, task, torch.Generator().manual_seed(0))
    z = torch.rand(inversion._DUMMIES, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(found[0], 2 + 8 * z.double(), rtol=1e-6)
    assert found.shape == (3, inversion._DUMMIES, 1, 2, 2)
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("shape", "bad", "said"),
    [
        ((1, 2, 2), None, None),
        ((4,), None, r"got records of shape \[4\]"),
        ((1, 2, 2), "gradients", "the gradient of victim 1 of 3 has entries"),
        ((1, 2, 2), "models", "the model of victim 1 of 3 has entries"),
    ],
)
def test_images_of_finite_numbers_are_attacked(shape: Any, bad: str | None, said: Any) -> None:
    vectors = {name: torch.zeros(3, 4) for name in ("gradients", "models")}
    if bad is not None:
        vectors[bad][1, 2], vectors[bad][2, 0] = inf, float("nan")
    observed: Any = SimpleNamespace(**vectors)
    task: Any = SimpleNamespace(shape=shape)
    if said is None:
        inversion._check(observed, task)
        return
    with pytest.raises(da.DpauditError, match=said):
        inversion._check(observed, task)


@pytest.mark.parametrize(
    ("of", "least"),
    [
        ({}, 12),
        ({"k": 9}, 20),
        ({"k": 9, "n_splits": 0}, 12),
        ({"k": 15, "n_splits": 0}, 16),
        ({"components": 9, "view_components": 8}, 18),
    ],
)
def test_halves_of_the_trials_have_enough_neighbours(of: Any, least: int) -> None:
    """And columns fewer than trials."""
    information.MutualInformation(message="x", trials=least, **of)
    with pytest.raises(ValueError, match=f"need at least {least}"):
        information.MutualInformation(message="x", trials=least - 1, **of)


def test_rounds_are_asked_about_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information, "first_heard", lambda setting, view: 2)
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=3), setting=None)

    def asked(**of: Any) -> Any:
        return information.MutualInformation(message="x", **of)._question(context, EAVESDROPPER)

    every = asked()
    assert (every.rounds, every.victim, every.private) == ((1, 2, 3), 2, "gradient")
    assert (every.components, every.view_components, every.reduction) == (1, 3, "aligned")
    some = asked(rounds=(3, 1, 3), victim=0, private="y", components=2, view_components=5)
    assert (some.rounds, some.victim, some.private) == ((1, 3), 0, "y")
    assert (some.components, some.view_components) == (2, 5)


def test_a_model_too_large_to_be_estimated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the view of a victim that is not its own; the other quantities are named."""
    monkeypatch.setattr(information, "blocks", lambda *_: [1])
    monkeypatch.setattr(information, "first_heard", lambda *_: 1)
    asked: list[Any] = []
    monkeypatch.setattr(information, "refuse_many_unknowns", lambda *of: asked.append(of[2:]))
    defense = SimpleNamespace(
        n_rounds=2, messages={"x": ""}, observables={"o": ""}, combinations={"c": ""}
    )
    context: Any = SimpleNamespace(defense=defense, setting=None)
    for message, agents in (("x", ()), ("view", (1,)), ("view", (0,))):
        kind: Any = "curious" if agents else "external"
        view = ThreatModel(name="some", kind=kind, agents=agents)
        information.MutualInformation(message=message).refuse_too_large(context, view)
    assert asked == [((1, 2), {"x", "o", "c"})]
