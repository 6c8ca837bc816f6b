"""Shadow models: who is dealt which records, what is seen of them, and what an audit reports."""

from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit
from dpaudit.attack import Classification, Streams, ThreatModel
from dpaudit.attack.membership_rates import Rates
from dpaudit.attacks.shadow_models import attack
from dpaudit.attacks.shadow_models.attack import ShadowModels
from dpaudit.attacks.shadow_models.shadows import deal, models_seen
from dpaudit.data.datasets import Dataset
from dpaudit.data.partition import Partition
from dpaudit.defense import Message, Round
from dpaudit.errors import ConfigError, DataError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, parameters_of

SIZES = (30, 20, 30)


def problem() -> Classification:
    """80 training records of agents with other classes each, and 40 test records."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, 4, 4, generator=rng)
    y = torch.cat([torch.arange(80) // 30, torch.arange(40) % 3])
    data = Dataset("mine", x[:80], y[:80], x[80:], y[80:], (0.0, 1.0), 3)
    held = np.split(np.arange(80), np.cumsum(SIZES)[:-1])
    return Classification(
        data, Partition(tuple(held), y[:80].numpy()), "logistic", torch.device("cpu")
    )


def test_every_run_deals_each_agent_its_number_of_each_class() -> None:
    shared = problem()
    dealt = deal(shared, 50, (1,), np.random.default_rng(1))
    labels = torch.cat([shared.dataset.y, shared.dataset.y_test])
    there = shared.held[1]
    expected = (labels[shared.held[0]] * there).expand(50, -1, -1)
    assert torch.equal(labels[dealt.held] * there, expected)
    assert torch.equal(dealt.held[:, 1], shared.held[0][1].expand(50, -1))  # the adversary's own
    assert set(dealt.public) | set(dealt.records) | set(range(30, 50)) == set(range(120))
    assert len(dealt.public) == 20
    assert min(dealt.public) >= 80
    for run, included in zip(dealt.held, dealt.included, strict=True):
        honest = run[[0, 2]].flatten().tolist()
        assert len(set(honest)) == 60
        assert sorted(dealt.records[included]) == sorted(honest)
    share = dealt.included[:, labels.numpy()[dealt.records] == 0].mean()
    assert share == pytest.approx(
        30 / (30 + (dealt.records >= 80)[labels.numpy()[dealt.records] == 0].sum())
    )


def test_a_run_on_the_real_records_draws_the_real_batches() -> None:
    shared, streams = problem(), Streams(4)
    held = shared.held[0].expand(2, -1, -1)
    real = shared.batch(streams, 3, 5, "fixed", trials=2)
    again = shared.holding(held).batch(streams, 3, 5, "fixed", trials=2)
    assert torch.equal(real.inputs, again.inputs)
    assert torch.equal(real.labels, again.labels)
    moved = shared.holding(held + 1).batch(streams, 3, 5, "fixed", trials=2)
    assert not torch.equal(real.inputs, moved.inputs)


@pytest.mark.parametrize("network", ["logistic", "lenet"])
def test_log_odds_are_those_of_the_softmax(network: str) -> None:
    module = build_network(network, (1, 8, 8), 3)
    gradients, rng = Gradients(module), torch.Generator().manual_seed(1)
    X = torch.randn(4, gradients.d, generator=rng) / 4
    x, y = torch.rand(1, 7, 1, 8, 8, generator=rng), torch.arange(7)[None] % 3
    found = gradients.log_odds(X, x, y, torch.zeros(4, dtype=torch.long))
    for i in range(4):
        p = torch.func.functional_call(module, parameters_of(module, X[i]), (x[0],)).softmax(-1)
        own = p[torch.arange(7), y[0]].double()
        torch.testing.assert_close(found[i].double(), (own / (1 - own)).log(), atol=1e-4, rtol=1e-3)


def test_the_model_that_is_seen_is_that_of_the_threat_model() -> None:
    X = torch.arange(12.0).view(2, 3, 2)
    sent = Message(X, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), torch.tensor([0, 1, 2]))
    played = Round(dpaudit.defense.Models(X), {"x": sent})

    class TwoRounds:
        n_rounds = 2

        def models(self, state: Any) -> torch.Tensor:
            return state.X

    def seen(k: int, **options: Any) -> torch.Tensor | None:
        return models_seen(TwoRounds(), ThreatModel(name="a", **options), "x", k, played)

    assert torch.equal(seen(2, kind="final-model"), X.mean(1))
    assert torch.equal(seen(2, kind="final-model", model_of=2), X[:, 2])
    assert seen(1, kind="final-model") is None
    assert torch.equal(seen(1), X.mean(1))
    assert torch.equal(seen(1, kind="curious", agents=(1,)), X[:, 0])  # not what it sends itself
    assert torch.equal(seen(1, links=((2, 0),)), X[:, 2])
    assert seen(1, links=((2, 1),)) is None


def test_half_of_the_attacked_runs_choose_the_thresholds(monkeypatch) -> None:
    given: list[Any] = []

    def rates(*scores: Any) -> Rates:
        given.append([one.tolist() for one in scores])
        return Rates({}, ("said",), {})

    monkeypatch.setattr(attack, "membership_rates", rates)
    scores = np.arange(10.0).reshape(5, 2)
    included = np.array([[True, False], [False, False], [True, True], [False, True], [True, False]])
    few = attack._Scored(scores, included, 3).rates()
    assert given == [[[4, 5, 7, 8], [1, 2, 3], [6, 9]]]  # members, thresholds, others
    assert few.notes[0] == "4 members and 2 others"
    assert few.notes[1].startswith("3 records are in too few")
    assert attack._Scored(scores, included, 0).rates().notes == (few.notes[0], "said")


@pytest.mark.parametrize(("n_records", "refused"), [(2 * 10**8 // (10 * 8), False), (10**8, True)])
def test_statistics_that_are_too_many_are_refused(n_records: int, refused: bool) -> None:
    """Ten runs of eight rounds."""
    learned: Any = SimpleNamespace(
        dataset=SimpleNamespace(x_test=range(40)), n_records=n_records + refused
    )
    own = ShadowModels(shadows=8, targets=2)
    if refused:
        with pytest.raises(ConfigError, match="10 runs"):
            own.refuse(learned, None)  # type: ignore[arg-type]
    else:
        own.refuse(learned, None)  # type: ignore[arg-type]
        learned.n_records += 1
        with pytest.raises(ConfigError, match="10 runs"):
            own.refuse(learned, None)  # type: ignore[arg-type]
        learned.dataset.x_test = range(39)
        with pytest.raises(DataError, match="at least 40"):
            own.refuse(learned, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("final", "rounds", "n_rounds", "expected"),
    [
        (True, None, 9, (9,)),
        (False, (5, 2, 5), 9, (2, 5)),
        (False, None, 3, (1, 2, 3)),
        (False, None, 15, (1, 3, 5, 7, 9, 11, 13, 15)),
    ],
)
def test_a_sequence_is_of_eight_rounds(final, rounds, n_rounds, expected) -> None:
    view: Any = SimpleNamespace(has_final_model=final)
    assert ShadowModels(rounds=rounds)._rounds(view, n_rounds) == expected


def audit(folder: Path, adversary: dict[str, Any], sigma: float, **options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.random((160, 1, 10, 10), dtype=np.float32), np.arange(160) % 2
    np.savez(folder / "noise.npz", x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    return {
        "seed": 3,
        "data": {"path": str(folder / "noise.npz"), "n_agents": 4},
        "graph": {"name": "complete"},
        "model": {"name": "logistic"},
        "defense": {
            "name": "dp-dpsgd", "n_rounds": 40, "batch_size": 20, "clip_norm": 5.0,
            "learning_rate": 1.0, "noise_multiplier": sigma,
        },
        "threat_model": [{"name": "who", **adversary}],
        "attack": [{"name": "shadow-models", "shadows": 24, "targets": 4, **options}],
    }  # fmt: skip


def found(*arguments: Any, **options: Any) -> dict[tuple[str, str], Finding]:
    result = dpaudit.audit(AuditConfig.from_dict(audit(*arguments, **options)), cores=1)
    named = [f for f in result.findings if f.role is Role.MEMBERSHIP]
    return {(f.title.split(" (")[0], f.world or ""): f for f in named}


METHODS = ("LiRA, online", "LiRA, offline", "RMIA, online", "RMIA, offline")


@pytest.mark.parametrize(
    "adversary",
    [
        pytest.param({"kind": "final-model", "access": "black-box"}, marks=pytest.mark.slow),
        {"kind": "curious", "agents": [0]},
    ],
    ids=["final", "neighbour"],
)
def test_memorised_labels_are_found_without_noise_alone(tmp_path: Path, adversary) -> None:
    """Labels are coins, which a model can only memorise. Under noise 300 times the clip norm the
    area is 1/2: at least 160 scores of others, within 5 standard errors but with probability 1e-6.
    """
    by_what = found(tmp_path, adversary, 300.0)
    assert set(by_what) == {(m, w) for m in METHODS for w in ("defense", "no-defense")}
    is_final = adversary["kind"] == "final-model"
    read = {finding.notes[0].partition(" after ")[2] for finding in by_what.values()}
    assert all((when == "the last round") is is_final for when in read), read
    for method in METHODS:
        bare, noisy = (by_what[method, world] for world in ("no-defense", "defense"))
        assert bare.metrics[Name.AUC].low > 0.6
        n = noisy.metrics[Name.AUC].n
        assert noisy.metrics[Name.AUC].value == pytest.approx(
            0.5, abs=5 * sqrt(1 / (6 * min(n, 75)))
        )


def test_a_defense_that_sends_no_such_message_is_refused(tmp_path: Path) -> None:
    config = audit(tmp_path, {}, 1.0)
    config["defense"] = {"name": "sgp", "n_rounds": 4, "batch_size": 20}
    config["graph"] = {"name": "complete"}
    with pytest.raises(ConfigError, match='no message is called "x"; expected .* of u, w'):
        dpaudit.audit(AuditConfig.from_dict(config), cores=1)


def test_few_test_records_are_refused(tmp_path: Path) -> None:
    config = audit(tmp_path, {}, 1.0)
    with np.load(tmp_path / "noise.npz") as file:
        few = {name: part[:39] if "test" in name else part for name, part in file.items()}
    np.savez(tmp_path / "noise.npz", **few)
    with pytest.raises(DataError, match="at least 40 records that nobody holds; .* 39 test"):
        dpaudit.audit(AuditConfig.from_dict(config), cores=1)


def test_too_few_records_in_no_run_are_told_in_a_note(tmp_path: Path) -> None:
    """Of 6,020 records 20 are left out of a run, so that hardly one is left out of two of eight."""
    config = audit(tmp_path, {"kind": "final-model"}, 1.0, shadows=8, targets=2)
    config["defense"] = {"name": "d-psgd", "n_rounds": 1, "batch_size": 20}
    rng = np.random.default_rng(0)
    x, y = rng.random((6040, 2), dtype=np.float32), np.arange(6040) % 2
    parts = {"x": x[40:], "y": y[40:], "x_test": x[:40], "y_test": y[:40]}
    np.savez(tmp_path / "noise.npz", allow_pickle=False, **parts)
    result = dpaudit.audit(AuditConfig.from_dict(config), cores=1)
    findings = [f for f in result.findings if f.role is Role.MEMBERSHIP]
    assert {finding.world for finding in findings} == {"defense", "no-defense"}
    for finding in findings:
        assert not finding.metrics
        assert finding.notes[0].startswith("not available: of 6,020 records, ")
        assert "more shadows and targets, or more test records" in finding.notes[0]


@pytest.mark.parametrize(
    ("counted", "told"),
    [([True, True, True], True), ([False, False, True], True), ([True, False, True], False)],
)
def test_rates_need_members_and_others_that_are_scored(counted: list[bool], told: bool) -> None:
    """The third record is in all reference runs, and not scored."""
    references = np.zeros((8, 3), dtype=bool)
    references[:4], references[:, 2] = True, True
    targets = np.array([[True, False, True], counted])
    asked = ShadowModels(shadows=8, targets=2)._too_few(np.concatenate([references, targets]))
    assert (asked is not None) is told
