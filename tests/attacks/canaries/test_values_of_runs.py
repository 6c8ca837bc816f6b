"""What one run with canaries plays, reads and proves, by hand."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attacks.canaries import channels, records
from dpaudit.attacks.canaries.channels import CanaryChannels
from dpaudit.attacks.shadow_models.scores import References
from dpaudit.defense.transcript import Message
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

NOTHING: Any = None
VIEW = ThreatModel(name="eavesdropper", kind="external")


class State(NamedTuple):
    X: Tensor


def a_problem() -> Any:
    problem = object.__new__(da.Classification)
    problem.gradients = NOTHING
    return problem


class Reader:
    """Notes what it is given."""

    def __init__(self, adversary: Any, canaries: slice, d: int, device: Any) -> None:
        self.of, self.canaries = (adversary, canaries, d), canaries
        self.seen: list[Any] = []
        made.append(self)

    def read(self, k: int, sent: Any, units: Any) -> None:
        self.seen.append((k, sent, units))

    def progress(self) -> Any:
        return ["progress"]

    def log_ratios(self) -> str:
        return f"ratios of {self.canaries}"

    def channels(self) -> str:
        return "channels"


made: list[Reader] = []


def test_canaries_are_drawn_by_coins_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of each set beside a model of two numbers, at agent 1, with two batches a round."""
    made.clear()
    asked: list[Any] = []
    monkeypatch.setattr(channels, "_CanaryReader", Reader)
    monkeypatch.setattr(
        channels, "RecordedNoise", lambda streams, k: SimpleNamespace(units=f"units {k}")
    )
    monkeypatch.setattr(channels, "replace", lambda one, **of: SimpleNamespace(**{**vars(one), **of}))  # fmt: skip
    coins = torch.arange(40) % 3 == 0

    def sampled(game: Any, k: int, n: int, streams: Any, s: int) -> Tensor:
        assert (game, n) == (own, 20)
        return torch.arange(40) % (2 + s) == 0

    monkeypatch.setattr(channels, "_sampled", sampled)

    class Defense:
        batch_size, drawing, batches_per_round = 4, "drawing", 2

        def start(self, X: Tensor, setting: Any) -> State:
            asked.append((tuple(X.shape), setting.d, setting.layers))
            assert not X[:, 2:].any()
            return State(X)

        def step(self, state: State, k: int, graph: Any, oracle: Any, noise: Any) -> Any:
            asked.append((k, graph, oracle))
            return State(state.X + 1), f"sent {k}", "more"

    own = SimpleNamespace(victim=1, length=8.0, effect=0.5)
    sampled_: Any = SimpleNamespace(game=own, n_rounds=3)
    problem = a_problem()
    monkeypatch.setattr(
        da.Classification, "initial", lambda self, streams: torch.ones(3, 2), raising=False
    )
    monkeypatch.setattr(
        da.Classification, "gradient", lambda self, s, k, size, drawing: (k, size, drawing),
        raising=False,
    )  # fmt: skip
    setting = SimpleNamespace(
        d=2, layers=(("w", 2),), network=SimpleNamespace(at=lambda k: f"graph {k}")
    )
    streams = SimpleNamespace(
        device="cpu",
        numpy=lambda name: SimpleNamespace(random=lambda n: np.where(coins[:n], 0.4, 0.6)),
    )
    context: Any = SimpleNamespace(
        defense=Defense(), setting=setting, streams=streams, problem=problem,
        checkpoint=SimpleNamespace(last=lambda: None, keep=lambda now: None),
    )  # fmt: skip
    steps: list[Any] = []
    one, other = channels.train_with_canaries(
        context,
        sampled_,
        "always",
        20,
        lambda *of: steps.append(of),  # type: ignore[arg-type]
    )
    assert asked[0] == ((3, 42), 42, (("w", 2), ("canaries", 40)))
    assert [(k, graph) for k, graph, _ in asked[1:]] == [(k, f"graph {k}") for k in (1, 2, 3)]
    oracle = asked[1][2]
    assert (oracle.real, oracle.d, oracle.victim, oracle.length, oracle.batch_size) == (
        (1, 4, "drawing"), 2, 1, 8.0, 4,
    )  # fmt: skip
    expected = 0.5 * (coins & (torch.arange(40) % 2 == 0))
    assert torch.equal(oracle.drawn, expected.to(oracle.drawn))
    [later] = oracle.later
    assert torch.equal(later, (0.5 * coins).to(later))
    assert [reader.of for reader in made] == [
        (sampled_, slice(0, 20), 2), ("always", slice(20, 40), 2),
    ]  # fmt: skip
    assert made[0].seen == [(k, f"sent {k}", f"units {k}") for k in (1, 2, 3)]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert (one.log_ratios, one.channels) == ("ratios of slice(0, 20, None)", "channels")
    assert one.included.tolist() == coins[:20].tolist()
    assert other.included.tolist() == coins[20:].tolist()


def test_each_canary_is_read_on_its_own_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses of lengths 5 and 0: what is whitened along a shift, by its length."""
    innovation = SimpleNamespace(
        reading=SimpleNamespace(
            shifts={1: torch.tensor([3.0, 4.0]), 2: torch.tensor([1e-12, 0.0])}
        ),
        whitened=torch.tensor([[1.0, 2.0], [0.0, -5.0]]),
    )
    heard: list[Any] = []

    class Kalman:
        def __init__(self, adversary: Any, start: Any) -> None:
            pass

        def update(self, k: int, sent: Any, units: Any) -> Any:
            heard.append((k, sent["x"].payload.tolist(), units))
            return innovation

    class Tally:
        def __init__(self, game: Any, n: int) -> None:
            assert n == 2

        def add(self, one: Any) -> None:
            assert one is innovation

        def scores(self, losses: Any) -> Tensor:
            return torch.tensor([0.5, -0.5])

    monkeypatch.setattr(channels, "KalmanFilter", Kalman)
    monkeypatch.setattr(channels, "LogRatios", Tally)
    game = SimpleNamespace(start=lambda n, dtype, device: n)
    reader = channels._CanaryReader(SimpleNamespace(game=game), slice(1, 3), 2, "cpu")  # type: ignore[arg-type]
    none = reader.channels()
    assert (none.seen.shape, none.sizes.tolist()) == ((2, 0), [])
    payload = torch.arange(10.0).view(2, 5)
    ends = torch.tensor([0, 1])
    units = {"z": torch.arange(5.0)[None], "one": torch.tensor([[7.0], [8.0]])}
    reader.read(4, {"x": Message(payload, ends, ends.flip(0), ends)}, units)
    k, seen, own = heard[0]
    assert (k, seen) == (4, [[[3.0], [8.0]], [[4.0], [9.0]]])
    assert own["z"].tolist() == [[[3.0]], [[4.0]]]
    assert own["one"].tolist() == [[[7.0], [8.0]]] * 2
    found = reader.channels()
    assert found.seen.tolist() == [[pytest.approx(11 / 5)], [pytest.approx(-4.0)]]
    assert found.sizes.tolist() == [5.0]
    assert reader.log_ratios().tolist() == [0.5, -0.5]
    shifts = {1: torch.tensor([3.0, 4.0]), 2: torch.tensor([0.0])}
    adversary: Any = SimpleNamespace(
        rounds=[SimpleNamespace(shifts=shifts), SimpleNamespace(shifts={3: torch.ones(4)})]
    )
    assert channels.channel_sizes(adversary).tolist() == [5.0, 2.0]
    assert CanaryChannels._fields == ("seen", "sizes")


def test_canaries_are_in_every_trial() -> None:
    """Of models [trials, agents, d] as of models [agents, d]."""

    class Real(dp.Gradient):
        batch_size = 4

        def __call__(self, X: Tensor, holders: Any = None) -> Tensor:
            return 2 * X

        def clipped_sum(
            self, X: Tensor, clip_norm: float, holders: Any = None, norm: int = 2
        ) -> Tensor:
            return 3 * X

        def per_record(self, X: Tensor, holders: Any = None, own: bool = False) -> Tensor:
            return X.unsqueeze(-2).expand(*X.shape[:-1], 2, X.shape[-1])

    drawn = torch.tensor([1.0, 0.0])
    X = torch.arange(24.0).view(2, 3, 4)
    oracle = channels.WithCanaries(Real(), 2, 1, 8.0, drawn, 4)
    for one, many in (
        (oracle(X[1]), oracle(X)), (oracle.clipped_sum(X[1], 5.0), oracle.clipped_sum(X, 5.0)),
        (oracle.per_record(X[1]), oracle.per_record(X)),
    ):  # fmt: skip
        assert torch.equal(many[1], one)


class Random:
    """Coins of three canaries, then draws of batches."""

    def __init__(self, *rows: Any) -> None:
        self.rows, self.shapes = list(rows), list[Any]()

    def random(self, shape: Any) -> Any:
        self.shapes.append(shape)
        return np.array(self.rows.pop(0)) if 0 not in np.atleast_1d(shape) else np.zeros(shape)


@pytest.mark.parametrize(("size", "rate"), [(8, 0.5), (2, 1.0)])
def test_scores_of_records_add_up_over_rounds(monkeypatch, size: int, rate: float) -> None:
    """Agent 1 draws four of its records; two of three canaries are there."""
    asked: list[Any] = []
    read: list[Any] = []

    class Defense:
        batch_size, drawing, batches_per_round = 4, "drawing", 2

        def start(self, X: Tensor, setting: Any) -> State:
            return State(X)

        def step(self, state: State, k: int, graph: str, oracle: Any, noise: Any) -> Any:
            asked.append((k, graph, oracle.real, oracle.drawn.tolist(), [d.tolist() for d in oracle.later]))  # fmt: skip
            return State(state.X + 1), f"sent {k}", "more"

    def reads(k: int, before: Any, sent: Any, state: State) -> Any:
        read.append((k, before, sent, float(state.X[0, 0])))
        return iter([torch.tensor([1.0, 2.0, 3.0]).double()] * (k if sees else 0))

    monkeypatch.setattr(
        da.Classification, "gradient", lambda self, s, k, *of: (k, *of), raising=False
    )
    monkeypatch.setattr(records, "tensors_of", lambda sent: sent)
    setting = SimpleNamespace(sizes=(99, size), network=SimpleNamespace(at=lambda k: f"graph {k}"))
    context: Any = SimpleNamespace(defense=Defense(), setting=setting, problem=a_problem())
    saved: Any = SimpleNamespace(
        last=lambda: None,
        keep=lambda now: kept.append("keep"),
        done=lambda now: kept.append("done"),
    )
    monkeypatch.setattr(da.Progress, "of", lambda *of: of)
    inputs, labels = torch.arange(3.0)[:, None], torch.arange(3)

    def scored() -> Any:
        asked.clear()
        rng: Any = Random(
            [0.4, 0.6, 0.49],
            [[0.49, 0.1, 0.6], [0.51, 0.1, 0.2]], [[0.9, 0.1, 0.9], [0.1, 0.1, 0.1]],
        )  # fmt: skip
        played = records._Played(context, 1, inputs, labels, torch.zeros(3, 2), 2, reads)
        found = played.scored(Streams(1), rng, saved, lambda *of: None)
        assert rng.shapes == [3, (0, 2, 3), (2, 3), (2, 3)]
        return found

    kept: list[str] = []
    sees = True
    scores, included = scored()
    assert included.tolist() == [True, False, True]
    assert scores.tolist() == [3.0, 6.0, 9.0]
    assert read == [(1, {}, "sent 1", 1.0), (2, "sent 1", "sent 2", 2.0)]
    assert asked[0][:3] == (1, "graph 1", (1, 4, "drawing"))
    every = rate == 1.0
    assert asked[0][3:] == ([True, False, every], [[every, False, True]])
    assert asked[1][3:] == ([every, False, every], [[True, False, True]])
    assert kept == ["keep", "done"]
    sees = False
    assert scored() is None


def test_a_final_score_is_held_against_those_of_references(monkeypatch: Any) -> None:
    """The first run is attacked; canaries that two others have, and two have not, are scored."""
    coins = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]).bool()
    asked: list[Any] = []

    class Played:
        context: Any = SimpleNamespace(
            streams=SimpleNamespace(child=lambda *of: SimpleNamespace(numpy=lambda name: of)),
            checkpoint=SimpleNamespace(stage=lambda i: f"stage {i}"),
        )

        def scored(self, streams: Any, rng: Any, saved: Any, on_round: Any) -> Any:
            i = len(asked)
            on_round(3, 6)
            asked.append((rng, saved))
            return torch.tensor([1.0, 2.0, 3.0]).double() * (i + 1), coins[i]

    def lira(statistics: Any, references: References) -> Any:
        assert statistics.tolist() == [[[1.0], [2.0]]]
        assert references.statistics[..., 0].tolist() == [[n, 2.0 * n] for n in (2, 3, 4, 5)]
        assert references.included.tolist() == coins[1:, :2].tolist()
        return np.array([[7.0, 8.0]])

    monkeypatch.setattr(records, "lira_online", lira)
    steps: list[Any] = []
    played: Any = Played()
    rng: Any = "rng"
    found = records._calibrated(played, rng, 4, lambda *of: steps.append(of))
    assert found.log_ratios.tolist() == [7.0, 8.0, 0.0]
    assert found.included.tolist() == [True, False, True]
    assert asked == [("rng", "stage 0"), *((("reference", i), f"stage {i}") for i in (1, 2, 3, 4))]
    assert steps[1][0] / steps[1][1] == pytest.approx((1 + 0.5) / 5)


def test_messages_are_read_beside_those_of_the_round_before(monkeypatch: Any) -> None:
    """Each link that reveals a gradient of its own gives one."""
    asked: list[Any] = []

    def derive(defense: Any, view: Any, setting: Any, target: Any) -> Any:
        asked.append((sorted(view), target.round, target.agent if hasattr(target, "agent") else target[1], target.receiver))  # fmt: skip
        if target.receiver == 3:
            raise da.NotObservable("DPA054", "nothing")
        return f"of {target.receiver}"

    observable = SimpleNamespace(derive=derive, links="x", differs_by_link=True)
    defense = SimpleNamespace(
        observables={"g": observable, "h": None}, n_rounds=9, clip_norm_in=lambda k: 2.0 * k
    )

    class View(dict):  # type: ignore[type-arg]
        @classmethod
        def of(cls, threat_model: Any, transcript: Any, rounds: set[int]) -> "View":
            assert set(transcript) <= rounds
            return cls(transcript)

        def edges(self, name: str, k: int) -> list[tuple[int, int]]:
            return [(1, 0), (2, 1), (1, 3), (1, 2)]

    monkeypatch.setattr(records.dp, "View", View)
    monkeypatch.setattr(records.dp, "Transcript", dict)
    monkeypatch.setattr(
        records, "_presence", lambda inputs, labels, derived, gradients, C: (derived, C)
    )
    monkeypatch.setattr(
        records, "ReleasedModel", SimpleNamespace(playing=lambda defense, model_of: None)
    )
    context: Any = SimpleNamespace(defense=defense, problem=a_problem(), setting=None)
    read = records._reader(context, VIEW, 1, NOTHING, NOTHING, NOTHING)
    assert list(read(1, {}, {"x": 1}, None)) == [("of 0", 2.0), ("of 2", 2.0)]  # type: ignore[dict-item,comparison-overlap]
    assert [one[0] for one in asked] == [[1]] * 3
    asked.clear()
    observable.differs_by_link = False
    assert list(read(2, {"x": 0}, {"x": 1}, None)) == [("of 0", 4.0)]  # type: ignore[dict-item,comparison-overlap]
    assert [one[0] for one in asked] == [[1, 2]]
    defense.observables = {}
    with pytest.raises(da.ConfigError, match="no gradient can be derived"):
        records._reader(context, VIEW, 1, NOTHING, NOTHING, NOTHING)


def test_records_for_canaries_are_wrong_or_extreme() -> None:
    """Of two public records five are drawn with some twice; crafted ones fill the range."""
    data: Any = SimpleNamespace(
        x=torch.zeros(3, 2), x_test=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), n_classes=3,
        y_test=torch.tensor([0, 2]), value_range=(-1.0, 5.0),
    )  # fmt: skip
    inputs, labels = records.records("mislabelled", data, 2, np.random.default_rng(0))
    assert sorted(inputs.tolist()) == data.x_test.tolist()
    for n in (2, 40):
        inputs, labels = records.records("mislabelled", data, n, np.random.default_rng(0))
        true = torch.where(inputs[:, 0] == 1, 0, 2)
        assert len(inputs) == n
        assert not (labels == true).any()
    assert set((labels - true).remainder(3).tolist()) == {1, 2}
    inputs, labels = records.records("crafted", data, 40, np.random.default_rng(0))
    assert (inputs.shape, inputs.dtype) == ((40, 2), torch.float32)
    assert set(inputs.flatten().tolist()) == {-1.0, 5.0}
    assert set(labels.tolist()) == {0, 1, 2}
    coins = np.random.default_rng(0).random((40, 2)) < 0.5
    assert ((inputs == 5.0).numpy() == coins).all()
