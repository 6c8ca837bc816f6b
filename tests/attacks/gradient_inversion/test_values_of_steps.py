"""What gradient inversion chooses and passes on from step to step, by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.attacks.gradient_inversion import (
    attack,
    exact,
    labels,
    local,
    objective,
    patches,
    search,
)
from dpaudit.attacks.gradient_inversion.attack import Attempt, GradientInversion
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.attacks.gradient_inversion.plan import Plan
from dpaudit.attacks.gradient_inversion.search import (
    LBFGS,
    Adam,
    Iterate,
    Minimum,
    Problems,
    Track,
)

NOTHING: Any = None
PLAN = Plan("l1", 0.02, "adam", 2, 3, 300)
ABOUT: dict[str, Any] = {"message": "gradient", "rounds": (1,)}


def inversion(**of: Any) -> GradientInversion:
    return GradientInversion(**ABOUT, **of)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_plan_gives_way_to_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(attack, "plan", lambda *of: (asked.append(of[2:]), PLAN)[1])
    assert inversion()._plan(NOTHING, NOTHING) == PLAN
    own = inversion(
        total_variation=0.0, restarts=5, iterations=7, signed=False, objective="chord",
        optimizer="lbfgs",
    )  # fmt: skip
    found = own._plan(NOTHING, NOTHING)
    assert found == PLAN._replace(total_variation=0.0, restarts=5, n_steps=7, signed=False)
    assert asked == [(None, None), ("chord", "lbfgs")]
    assert own.learning_rate == 0.7


@pytest.mark.parametrize(
    ("method", "local", "loss", "refused", "expected"),
    [
        ("optimised", None, 0.0, False, "optimised"),
        ("auto", "steps", 0.0, False, "optimised"),
        ("exact", "steps", 0.0, False, "optimised"),
        ("auto", None, 1e-3, False, "exact"),
        ("auto", None, 1.1e-3, False, "better of exact, optimised"),
        ("exact", None, 1.1e-3, False, "exact"),
        ("exact", None, 0.0, True, "raised"),
        ("auto", None, math.inf, True, "better of exact, optimised"),
    ],
)
def test_equations_are_taken_where_they_explain(
    monkeypatch, method, local, loss, refused, expected
) -> None:
    """The loss of both victims is asked without a prior."""
    priors: list[float] = []

    class Exact(str):
        losses = torch.tensor([[0.0], [loss]])

    def scored(batches: Any, observed: Any, task: Any, chosen: Plan) -> Exact:
        priors.append(chosen.total_variation)
        return Exact("exact")

    monkeypatch.setattr(attack, "_check", lambda *_: None)
    monkeypatch.setattr(
        attack, "recover",
        lambda observed, *_: ["batch", da.NotObservable("DPA055", "no")] if refused else ["batch"],
    )  # fmt: skip
    monkeypatch.setattr(attack, "_scored", scored)
    monkeypatch.setattr(attack, "_better", lambda one, other: f"better of {one}, {other}")
    monkeypatch.setattr(GradientInversion, "_plan", lambda *_: PLAN)
    monkeypatch.setattr(GradientInversion, "_optimised", lambda *_: "optimised")
    seen: Any = SimpleNamespace(local=local, surest=lambda: "surest")
    seen.pooled = lambda: seen
    steps: list[Any] = []
    own = inversion(method=method)
    if expected == "raised":
        with pytest.raises(da.NotObservable, match="no"):
            own.reconstruct(seen, NOTHING, NOTHING, lambda *of: steps.append(of))
        return
    found: Any = own.reconstruct(seen, NOTHING, NOTHING, lambda *of: steps.append(of))
    assert found == expected
    assert steps == ([(1, 1)] if (method, expected) == ("auto", "exact") else [])
    assert priors == [] if expected == "optimised" else priors[0] == 0.02
    assert method != "auto" or local or priors[1:] == [0.0]


@pytest.mark.parametrize(
    ("asked", "guess", "joint"), [(None, "guess", False), ("joint", "guess", True), (None, None, True)]
)  # fmt: skip
def test_further_starts_are_for_those_who_have_no_low_loss(
    monkeypatch, asked, guess, joint
) -> None:
    """Of three victims the second is solved at first, and the third in the second attempt."""
    losses = iter([[0.5, 1e-6, 2e-6], [0.5, 1e-7], [0.5]])
    calls: list[Any] = []
    monkeypatch.setattr(
        attack, "_starts", lambda observed, task, restarts, generator, n: torch.zeros(n, 1, 1)
    )
    monkeypatch.setattr(attack, "_objective", lambda o, t, chosen, labels: labels)
    monkeypatch.setattr(
        GradientInversion, "_guess_labels", lambda self, o, t, chosen, *_: (guess, chosen)
    )

    def search_(
        self: Any, objective: Any, chosen: Any, guessed: Any, victims: Tensor, starts: Any,
        step: Any, checkpoint: str,
    ) -> Attempt:  # fmt: skip
        calls.append((objective, guessed, victims.tolist(), len(starts), checkpoint))
        n = len(victims)
        track = Track(torch.zeros(1, n), torch.zeros(1, n, 1))
        return Attempt(torch.zeros(n, 1, 1), torch.tensor([next(losses)]).T, track)

    monkeypatch.setattr(GradientInversion, "_search", search_)
    monkeypatch.setattr(
        attack, "_best", lambda objective, found, chosen: [f.losses[:, 0].tolist() for f in found]
    )
    seen: Any = SimpleNamespace(n_secrets=3, models=torch.zeros(3, 1))
    task: Any = SimpleNamespace(checkpoint=SimpleNamespace(stage=lambda i: f"{i}"))
    own = inversion(labels=asked)
    found: Any = own._optimised(seen, task, PLAN, lambda *_: None, NOTHING)  # type: ignore[arg-type]
    labels_ = None if joint else "guess"
    assert calls == [
        (labels_, guess, [0, 1, 2], 3, "0"), (labels_, guess, [0, 2], 2, "1"),
        (labels_, guess, [0], 1, "2"),
    ]  # fmt: skip
    rows = [[round(x, 9) for x in row] for row in found]
    assert rows == [
        [0.5, 1e-6, 2e-6], [0.5, math.inf, 1e-7], [0.5, math.inf, math.inf],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "steps", "counts", "rehearsed", "ordered"),
    [(1, None, 1, 0, False), (3, None, 3, 2, False), (3, [1, 2], 3, 2, True), (3, [3], 3, 2, False)],
)  # fmt: skip
def test_labels_of_a_batch_are_counted_again(
    monkeypatch, batch, steps, counts, rehearsed, ordered
) -> None:
    """By random dummies, then by images of two short searches; in order where there are steps."""
    asked: list[Any] = []
    given = iter([[[2, 1, 1]], [[1, 1, 2]], [[0, 1, 2]]])
    monkeypatch.setattr(attack, "last_parameters", lambda *_: "bias")
    monkeypatch.setattr(attack, "halfway", lambda observed: "halfway")
    monkeypatch.setattr(attack, "dealt", lambda labels, observed: labels)
    monkeypatch.setattr(attack, "one_pass", lambda local, n: steps)
    monkeypatch.setattr(attack, "_dummies", lambda *_: "dummies")
    monkeypatch.setattr(attack, "replace", lambda observed, local: "one step")
    monkeypatch.setattr(attack, "_objective", lambda o, t, chosen, labels: (o, labels.tolist()))

    def infer(observed: str, task: Any, images: Any) -> Tensor:
        asked.append((observed, images))
        return torch.tensor(next(given))

    class Rehearsed(GradientInversion):
        def _search(self, objective: Any, short: Any, labels: Any, victims: Any, starts: Any, *of: Any) -> Any:  # fmt: skip
            asked.append((objective, short.n_steps, short.attempts, starts.shape[-1], of[1]))
            return "rehearsed"

        def _in_order(self, observed: Any, task: Any, chosen: Any, labels: Any, images: Any, starts: Any) -> Any:  # fmt: skip
            return "in order", labels.tolist(), images

    monkeypatch.setattr(attack, "infer_labels", infer)
    monkeypatch.setattr(
        attack, "_best", lambda objective, found, short: SimpleNamespace(images="images")
    )
    seen: Any = SimpleNamespace(batch_size=batch, local=None if steps is None else "steps")
    task: Any = SimpleNamespace(
        gradients=SimpleNamespace(module=None), n_classes=3, shape=(1, 2, 2),
        checkpoint=SimpleNamespace(stage=lambda name: name),
    )  # fmt: skip
    starts = torch.zeros(1, 2, 40)
    found: Any = Rehearsed(**ABOUT)._guess_labels(seen, task, PLAN, starts, lambda *_: None)  # type: ignore[arg-type]
    assert found[1] is PLAN
    assert asked[0] == ("halfway", "dummies")
    assert len(asked) == 1 + 2 * rehearsed
    if rehearsed:  # the same labels in another order stay as they are
        assert asked[1] == (("one step", [[2, 1, 1]]), 20, 1, 12, "rehearsal-0")
        assert asked[3] == (("one step", [[2, 1, 1]]), 20, 1, 12, "rehearsal-1")
        last = [[0, 1, 2]]
        assert found[0] == ("in order", last, "images") if ordered else found[0].tolist() == last

    def hidden(*_: Any) -> str:
        raise da.NotObservable("DPA055", "no last layer")

    monkeypatch.setattr(attack, "last_parameters", hidden)
    none: Any = inversion()._guess_labels(seen, task, PLAN, starts, NOTHING)
    assert none[0] is None
    assert none[1].notes == ("no last layer: they were searched along with the images",)
    with pytest.raises(da.NotObservable, match="no last layer"):
        inversion(labels="inferred")._guess_labels(seen, task, PLAN, starts, NOTHING)


@pytest.mark.parametrize("guess", [None, [[1], [0], [1]]])
def test_victims_are_searched_as_many_at_once_as_fit(monkeypatch, guess: Any) -> None:
    """Two of three, with two starts each, and with logits behind the images if labels are open."""
    calls: list[Any] = []
    monkeypatch.setattr(attack, "at_once", lambda observed, rows: (calls.append(rows), 2)[1])
    monkeypatch.setattr(
        attack, "first_logits", lambda likely, task: (calls.append(likely.tolist()), torch.ones(3, 2))[1]
    )  # fmt: skip

    class Own(GradientInversion):
        def _minimum(self, objective: Any, chosen: Any, victims: Tensor, start: Tensor, groups: Tensor, *of: Any) -> Any:  # fmt: skip
            calls.append((victims.tolist(), start.shape, groups.tolist(), of[1]))
            of[0](1, 2)
            n = int(groups.max()) + 1
            losses = victims + groups / 4
            return Minimum(start + 1, losses, Track(torch.zeros(4, n), torch.zeros(4, n, start.shape[1])))  # fmt: skip

    observed = SimpleNamespace(batch_size=1, most_joined=3)
    task = SimpleNamespace(n_classes=2)
    objective_: Any = SimpleNamespace(labels=None, observed=observed, task=task)
    starts = torch.arange(18.0).view(3, 2, 3)
    steps: list[Any] = []
    checkpoint: Any = SimpleNamespace(stage=lambda i: f"{i}")
    guessed = None if guess is None else torch.tensor(guess)
    victims = torch.tensor([2, 0, 1])
    found = Own(**ABOUT)._search(
        objective_, PLAN, guessed, victims, starts, lambda *of: steps.append(of), checkpoint
    )
    likely = [[[0, 0]]] * 3 if guess is None else [[[0, 1]], [[0, 1]], [[1, 0]]]
    assert calls[0] == likely
    assert calls[1] == 6
    assert calls[2] == ([2, 2, 0, 0], (4, 5), [0, 0, 1, 1], "0")
    assert calls[3] == ([1, 1], (2, 5), [0, 0], "1")
    assert found.points[..., :3].tolist() == (starts + 1).tolist()
    assert found.points[..., 3:].unique().tolist() == [2.0]
    assert found.losses.tolist() == [[2.0, 2.0], [0.25, 0.25], [1.0, 1.0]]
    assert found.track.losses.shape == (4, 3)
    assert [done / whole for done, whole in steps] == [0.25, 0.75]
    objective_.labels = torch.zeros(3, 1)
    calls.clear()
    known = Own(**ABOUT)._search(
        objective_, PLAN, guessed, victims, starts, lambda *_: None, checkpoint
    )
    assert known.points.shape == (3, 2, 3)
    assert calls[0] == 6


def test_a_search_ends_at_rounding_where_there_is_no_prior(monkeypatch: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        attack, "minimise", lambda problems, method, n, *_: asked.append((problems, method, n))
    )
    objective_: Any = SimpleNamespace(task=SimpleNamespace(value_range=(-1.0, 3.0)))
    start = torch.zeros(2, 3)

    def minimum(own: GradientInversion, chosen: Plan) -> Any:
        own._minimum(objective_, chosen, NOTHING, start, NOTHING, NOTHING, NOTHING)
        return asked[-1]

    problems, method, n = minimum(inversion(), PLAN)
    assert (problems.tolerance, problems.bounds, n) == (0.0, (-1.0, 3.0), 300)
    assert method == Adam(pytest.approx(0.7 * 4 / 2), True)  # type: ignore[arg-type]
    bare = PLAN._replace(total_variation=0.0, mismatch="chord", signed=False)
    problems, method, _ = minimum(inversion(learning_rate=0.1), bare)
    assert problems.tolerance == 5e-6
    assert method == Adam(pytest.approx(0.1 * 4 / 2), False)  # type: ignore[arg-type]
    assert isinstance(minimum(inversion(), PLAN._replace(optimizer="lbfgs"))[1], LBFGS)


def test_the_best_restart_of_all_attempts_is_handed_back(monkeypatch: Any) -> None:
    """Two victims; the second is best in the second attempt, and so is its trace."""
    monkeypatch.setattr(attack, "traced", lambda n: (0, n))

    def attempt(losses: Any, points: Any, traced: float) -> Attempt:
        track = Track(torch.full((2, 2), traced), torch.full((2, 2, 1), traced))
        return Attempt(torch.tensor(points)[..., None], torch.tensor(losses), track)

    found = [
        attempt([[0.3, 0.2], [0.9, 0.8]], [[1.0, 2.0], [3.0, 4.0]], 10.0),
        attempt([[0.4], [0.7]], [[5.0], [6.0]], 20.0),
    ]
    merged: list[Any] = []
    monkeypatch.setattr(
        attack, "merged", lambda images, labels, passes: merged.append(passes) or images
    )
    observed = SimpleNamespace(local=None, batch_size=1)
    objective_: Any = SimpleNamespace(
        observed=observed, images=lambda points: points[:, :, None, None, None],
        labels_of=lambda points, victims: torch.tensor([[[0.1, 0.9]], [[0.8, 0.2]]]),
    )  # fmt: skip
    best = attack._best(objective_, found, PLAN._replace(notes=("n",)))
    assert best.images.flatten().tolist() == [2.0, 6.0]
    assert best.labels.tolist() == [[1], [0]]
    torch.testing.assert_close(best.losses, torch.tensor([[0.3, 0.2, 0.4], [0.9, 0.8, 0.7]]))
    assert best.trace is not None
    assert (best.trace.iterations, best.notes) == ((0, 300), ("n",))
    assert best.trace.losses.tolist() == [[10.0, 10.0], [20.0, 20.0]]
    assert best.trace.images.flatten().tolist() == [10.0, 10.0, 20.0, 20.0]
    assert merged == []
    observed.local = SimpleNamespace(passes=3)
    attack._best(objective_, found, PLAN)
    assert merged == [3, 3]


@pytest.mark.parametrize("mismatch", ["l1", "likelihood"])
def test_losses_are_averaged_over_gradients_of_a_secret(monkeypatch, mismatch: Any) -> None:
    """Likelihoods add up; the prior and the order of passes come on top, in half ranges of 2."""
    secrets = torch.tensor([0, 0, 1])
    observed: Any = SimpleNamespace(
        secrets=secrets, local=None, batch_size=2, gradients=torch.zeros(3, 1)
    )
    task: Any = SimpleNamespace(
        shape=(1, 1, 2), value_range=(-1.0, 3.0), frame=None, gradients=SimpleNamespace(d=8)
    )
    given = vector(1.0, 3.0, 7.0)
    rows: list[Any] = []

    def simulated(seen: Any, task: Any, of: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        rows.append((of.tolist(), images.shape, labels.tolist()))
        return given[of][:, None]

    monkeypatch.setattr(objective, "simulated", simulated)
    monkeypatch.setattr(Objective, "_mismatch", lambda self, s, rows: s[:, 0])
    monkeypatch.setattr(objective, "n_dummies", lambda observed: 2)
    monkeypatch.setattr(objective, "repeated", lambda labels, observed: labels)
    own = Objective(observed, task, torch.tensor([[4, 5], [6, 7]]), mismatch, 0.0)
    points = torch.tensor([[0.0, 2.0, 4.0, 4.0], [1.0, 1.0, 1.0, 3.0]]).double()
    victims = torch.tensor([1, 0])
    total = mismatch == "likelihood"
    base = [7.0, 4.0 if total else 2.0]
    assert own(points, victims).tolist() == base
    assert rows[0] == ([2, 0, 1], (3, 2, 1, 1, 2), [[6, 7], [4, 5], [4, 5]])
    prior = Objective(observed, task, torch.tensor([[4, 5], [6, 7]]), mismatch, 0.5)
    weight = 2 * 0.5 * 4 / 8 if total else 0.5
    steps = [(2 + 0) / 2 / 2, (0 + 2) / 2 / 2]  # mean steps along rows, and none down
    monkeypatch.setattr(objective, "_mean_step", lambda images: images.diff(dim=-1).abs().flatten(1).mean(1))  # fmt: skip
    found = prior(points, victims).tolist()
    assert found == pytest.approx([b + weight * s for b, s in zip(base, steps, strict=True)])
    observed.local = SimpleNamespace(passes=2)
    monkeypatch.setattr(
        objective, "disagreement", lambda images, passes: images[:, 0].flatten(1).sum(1)
    )
    assert own(points, victims).tolist() == [base[0] + 1.0, base[1] + 1.0]


def test_zero_gradients_have_a_direction_of_zeros() -> None:
    assert objective._unit(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist() == [
        [0.0, 0.0], pytest.approx([0.6, 0.8]),
    ]  # fmt: skip


def test_secrets_are_repeated_one_behind_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "replace", lambda observed, **of: of)
    observed: Any = SimpleNamespace(
        models=torch.tensor([[1.0], [2.0]]), gradients=torch.tensor([[3.0], [4.0]]),
        std=vector(0.1, 0.2), secrets=torch.tensor([0, 2]), batch_size=2,
        local=SimpleNamespace(passes=3),
    )  # fmt: skip
    found: Any = local.of_each(observed, 2)
    assert found["models"].flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert found["gradients"].flatten().tolist() == [3.0, 3.0, 4.0, 4.0]
    assert found["std"].tolist() == [0.1, 0.1, 0.2, 0.2]
    assert found["secrets"].tolist() == [0, 1, 4, 5]
    assert local.n_dummies(observed) == 6
    assert local.repeated(torch.tensor([[7, 8]]), observed).tolist() == [[7, 8] * 3]
    shares = torch.tensor([[[0.1, 0.9], [0.2, 0.8]]])
    assert local.repeated(shares, observed).shape == (1, 6, 2)
    observed.std = observed.secrets = None
    assert local.of_each(observed, 2)["std"] is None  # type: ignore[index]


def test_orders_are_by_their_losses_the_best_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two records in steps of one; images move along with their labels."""
    images = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    labels_ = torch.tensor([[5, 6], [7, 8]])

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        assert ((images[..., 0] + 4) == labels).all()
        return torch.tensor([1.0, 0.0]) * (labels[:, 0] == torch.tensor([5, 8]))

    found = local.likely_orders(labels_, images, [1, 1], loss)
    assert found.shape == (2, 8, 2)
    assert found[:, 0].tolist() == [[6, 5], [7, 8]]
    assert found[:, 1].tolist() == [[5, 6], [8, 7]]
    monkeypatch.setattr(local, "_TRIED", 1)  # then pairs are exchanged while the loss falls
    found = local.likely_orders(labels_, images, [1, 1], loss)
    assert found[:, 0].tolist() == [[6, 5], [7, 8]]


@pytest.mark.parametrize(("plans", "steps"), [(True, 120), (False, 50)])
def test_a_search_that_plans_its_end_is_not_given_up(plans: bool, steps: int) -> None:
    """Where nothing is gained in fifty steps, any other one is."""

    class Still:
        plans_its_end = plans

        def memory(self, start: Tensor) -> tuple[Tensor, ...]:
            return ()

        def step(self, problems: Problems, now: Iterate, k: int, n_steps: int) -> Iterate:
            taken.append(k)
            return now

    taken: list[int] = []
    own = Problems(lambda x, p: 1 + 0 * x[:, 0], torch.zeros(1, 1), (-1.0, 1.0), 0.0)
    method: Any = Still()
    search.minimise(own, method, 120, lambda *_: None)
    assert taken == list(range(1, steps + 1))


def test_patches_follow_from_the_gradient_of_their_positions(monkeypatch: Any) -> None:
    """Of two parameters of that shape it is the one whose rows add up to the bias's gradient."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 1, 4, 4, generator=generator)
    dz = torch.randn(4, 4, generator=generator)  # of four patches, in four channels
    P = nn.functional.unfold(image, 2, stride=2)[0].mT
    parts = {
        "decoy": dz + 0.1 * dz.sum(0), "place": dz, "0.bias": dz.sum(0),
        "0.weight": (dz.mT @ P).view(4, 1, 2, 2),
    }  # fmt: skip
    monkeypatch.setattr(patches, "parameters_of", lambda module, gradient: parts)
    module = nn.Sequential(nn.Conv2d(1, 4, 2, stride=2))
    task: Any = SimpleNamespace(gradients=SimpleNamespace(module=module), shape=(1, 4, 4))
    found = patches.image_of_patches(task, NOTHING)
    assert found is not None
    torch.testing.assert_close(found.float(), image, atol=1e-4, rtol=1e-4)
    del parts["place"]
    assert patches.image_of_patches(task, NOTHING) is None


def test_labels_are_counted_by_impact_and_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record takes 1.5 / 4 from its entry, of which others leave 1/2: three, one and none."""
    g = torch.tensor([[0.5 - 3 * 0.375, 0.5 - 0.375, 0.5]])
    monkeypatch.setattr(labels, "last_parameters", lambda *_: "bias")
    monkeypatch.setattr(labels, "parameters_of", lambda module, vector: {"bias": vector})
    monkeypatch.setattr(labels, "_answers", lambda *_: 0.5 - 1.5 * torch.eye(3)[None])
    seen: Any = SimpleNamespace(
        gradients=g, batch_size=4, secrets=None, by_secret=lambda entries: entries
    )
    task: Any = SimpleNamespace(gradients=SimpleNamespace(module=None), n_classes=3)
    assert labels.infer_labels(seen, task, NOTHING).tolist() == [[0, 0, 0, 1]]


def test_one_record_alone_is_read_off_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the range; a batch is separated at the first layer."""
    asked: list[Any] = []
    monkeypatch.setattr(
        exact, "image_of_patches", lambda task, g: (asked.append("patches"), found)[1]
    )
    monkeypatch.setattr(exact, "label_of", lambda task, g, model, image: torch.tensor([7]))
    monkeypatch.setattr(exact, "front", lambda *_: SimpleNamespace(augmented=vector(1, 2, 3)[None]))
    monkeypatch.setattr(exact, "input_of_linear", lambda ahead: "signal")
    monkeypatch.setattr(exact, "image_before", lambda ahead, signal: vector(0.5, 9.0))
    monkeypatch.setattr(exact, "_require_first_with_relu", lambda *_: asked.append("relu"))
    monkeypatch.setattr(
        exact, "separate", lambda ahead, b, generator: (vector(-9.0, 0.5, 0.25, 2.0), "slopes")
    )
    monkeypatch.setattr(
        exact, "_labels", lambda task, model, ahead, images, slopes: slopes if slopes == "slopes" else slopes.tolist()
    )  # fmt: skip
    task: Any = SimpleNamespace(value_range=(-1.0, 1.0), shape=(1, 1, 2))
    g = torch.zeros(3)

    def recover(b: int) -> Any:
        return exact._recover(b, task, g, g, lambda *_: NOTHING)  # type: ignore[arg-type,return-value]

    found: Any = torch.tensor([[[[3.0, 0.5]]]])
    assert [part.flatten().tolist() for part in recover(1)] == [[1.0, 0.5], [7]]
    found = None
    one = recover(1)
    assert (one.images.flatten().tolist(), one.labels) == ([0.5, 1.0], [[3.0]])
    asked.clear()
    two = recover(2)
    assert (two.images.shape, two.images.flatten().tolist()) == (
        (2, 1, 1, 2), [-1.0, 0.5, 0.25, 1.0],
    )  # fmt: skip
    assert (two.labels, asked) == ("slopes", ["relu"])
    assert two.images.dtype == torch.float32


def test_labels_fill_a_batch_by_what_is_left_over() -> None:
    g = torch.tensor([[-3.0, -1.0, -2.0, 0.5]])
    expected = torch.tensor([[0.2, 1.9, 1.2, 0.0]])
    assert labels._counts(g, expected, 2).tolist() == [[1, 0, 1, 0]]
    assert labels._counts(g, expected, 5).tolist() == [[1, 2, 2, 0]]
    flat = nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(1), nn.Flatten())
    assert labels.last_parameters(flat, 3) == "0.bias"
