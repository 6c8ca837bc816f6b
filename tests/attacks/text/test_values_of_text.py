"""How tokens are recovered from fronts and spans, step by step, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.attacks.text import attack, span
from dpaudit.attacks.text import front as fronts
from dpaudit.attacks.text.attack import Dager, ScoredText, recovered
from dpaudit.attacks.text.front import LayersOfOneInput, TransformerFront
from dpaudit.attacks.text.sequences import Choice
from dpaudit.attacks.text.span import Span
from dpaudit.files.finding import Name

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def choice(*tokens: int) -> Choice:
    return Choice(torch.tensor(tokens), torch.zeros(len(tokens)))


def a_span(rank: int = 2, d: int = 9, is_exact: bool = True) -> Any:
    def outside(rows: Tensor) -> Tensor:
        return rows[..., 0]

    return SimpleNamespace(rank=rank, d=d, is_exact=is_exact, outside=outside)


OUTSIDE = torch.tensor([[0.5, 0.1], [0.2, 0.3], [0.3, 0.2]])
FOUND = torch.tensor([[True, False], [False, True], [False, False]])


class Fronts(SimpleNamespace):
    """The first block whose gradient is not zero is read."""

    length = 2
    first = ("frozen", "read", "other")

    def gradient(self, vector: Tensor, block: str) -> Tensor:
        return vector * (block != "frozen") * (not self.frozen)

    def after(self, block: str) -> Any:
        asked.append(block)
        return self.second

    def is_causal(self, block: str) -> bool:
        return bool(self.causal)

    def inputs(self, ids: Tensor, block: str) -> Tensor:
        return ids[..., None].double()


asked: list[Any] = []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which way text is decoded, with the ways' own arguments."""
    asked.clear()
    of = SimpleNamespace(
        spans=(a_span(), a_span(4)), given=[choice(0, 2), choice(1)], peeled=[[5, 6]]
    )
    monkeypatch.setattr(attack, "span_of", lambda front, block, g, std: (asked.append((block, std)), of.spans)[1])  # fmt: skip
    monkeypatch.setattr(attack, "members", lambda front, block, spans: (OUTSIDE, FOUND))
    monkeypatch.setattr(
        attack, "choices",
        lambda outside, found, most, exact: (asked.append((most, exact)), of.given)[1],
    )  # fmt: skip

    def way(name: str) -> Any:
        def decode(front: Any, block: str, span: Any, given: Any, n: int, step: Any) -> Any:
            asked.append((name, block, n))
            step(0)
            rows = torch.tensor([[7, 8]] * n)
            return rows, torch.full((n,), 0.25)

        return decode

    def peel(front: Any, gradients: Any, observed: Any, i: int, blocks: Any, step: Any) -> Any:
        asked.append(("peeled", blocks, i))
        return SimpleNamespace(found=torch.tensor(of.peeled), given="given", span=of.spans[0])

    monkeypatch.setattr(attack, "decoded", way("decoded"))
    monkeypatch.setattr(attack, "exchanged", way("exchanged"))
    monkeypatch.setattr(attack, "peeled", peel)
    return of


def observed(n: int = 2, std: Any = None) -> Any:
    gradients = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return SimpleNamespace(gradients=gradients, batch_size=n, std=std)


def run(told: Any, n: int = 2, positions: int = 0, std: Any = None, **of: Any) -> Any:
    asked.clear()
    about = {"second": "second", "causal": True, "frozen": False, **of}
    steps: list[Any] = []
    gradients: Any = SimpleNamespace(positions=positions)
    front: Any = Fronts(**about)
    found = recovered(front, observed(n, std), 1, gradients, lambda *s: steps.append(s))
    return found, steps


def test_tokens_are_decoded_as_the_network_reads_them(told: Any) -> None:
    found, steps = run(told)
    assert asked == [
        ("read", None), (8, True), "read", ("second", None), ("decoded", "second", 2),
    ]  # fmt: skip
    assert (found.ids.tolist(), found.far) == ([[7, 8]] * 2, 0.25)
    assert found.found.tolist() == [True, True, False]
    assert found.span is told.spans[0]
    assert steps == [(1, 3), (1, 3)]
    run(told, std=vector(0.1, 0.5), frozen=True)
    assert asked[0] == ("frozen", 0.5)  # where all gradients are zero, the first
    run(told, causal=False, positions=3)
    assert asked[-1] == ("exchanged", "second", 2)
    told.spans = (a_span(is_exact=False), a_span())
    run(told, causal=False)
    assert asked[-1] == ("exchanged", "second", 2)
    assert (8, False) in asked


def test_an_encoder_s_text_is_peeled_off_and_mended(told: Any) -> None:
    """One of two sequences is certain; then the other one is exchanged."""
    found, _ = run(told, causal=False)
    assert asked[-2:] == [("peeled", ("read", "second"), 1), ("exchanged", "second", 1)]
    assert found.ids.tolist() == [[5, 6], [7, 8]]
    assert found.far == pytest.approx((5.5 + 0.25) / 2)
    assert found.found.tolist() == [True, True, False]
    told.peeled = [[0, 2], [2, 2]]
    found, _ = run(told, causal=False)
    assert asked[-1][0] == "peeled"
    assert found.ids.tolist() == [[0, 2], [2, 2]]
    assert found.found.tolist() == [True, False, True]


def test_a_single_layer_gives_the_nearest_tokens(told: Any) -> None:
    """Also of one sequence with one token at each position; tokens are dealt out in turn."""
    for of, is_decoded in (
        ({"second": None}, False),
        ({"n": 1}, True),
        ({"n": 1, "given": [choice(0), choice(1)]}, False),
        ({"n": 2, "given": [choice(0), choice(1)]}, True),
    ):
        told.given = of.pop("given", [choice(0, 2), choice(1)])  # type: ignore[attr-defined]
        found, _ = run(told, **of)  # type: ignore[arg-type]
        assert (asked[-1][0] == "decoded") is is_decoded
        if not is_decoded:
            n = of.get("n", 2)
            expected = [[0, 1], [2, 1]][:n]
            assert found.ids.tolist() == expected
            far = [OUTSIDE[t, p] for row in expected for p, t in enumerate(row)]
            assert found.far == pytest.approx(float(sum(far) / len(far)))
    broken = observed()
    broken.gradients[1, 0] = torch.inf
    with pytest.raises(da.NotObservable, match="no finite numbers"):
        recovered(Fronts(), broken, 1, NOTHING, NOTHING)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "refused"), [(None, False), (8 * 3 * 100, False), (8 * 3 * 100 - 1, True)]
)
def test_models_that_fit_into_memory_are_not_refused(monkeypatch, free, refused) -> None:
    """Of three agents with 100 parameters: models and gradients of four bytes each."""
    monkeypatch.setattr(attack, "available", lambda: free)
    learned: Any = SimpleNamespace(problem=None)
    monkeypatch.setattr(da.ReconstructionAttack, "refuse", lambda *_: None)
    setting: Any = SimpleNamespace(n_agents=3, d=100)
    if not refused:
        Dager(message="x", rounds=(1,)).refuse(learned, setting)
        return
    with pytest.raises(da.ConfigError, match="of 3 agents with 100 parameters"):
        Dager(message="x", rounds=(1,)).refuse(learned, setting)


def test_ids_are_given_in_the_place_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        attack, "TransformerFront", lambda module, x, length, n: made.append((x, length, n))
    )
    monkeypatch.setattr(
        attack, "recovered",
        lambda front, observed, i, gradients, step: SimpleNamespace(
            ids=torch.tensor([[i, 1], [2, 3]]), far=0.5 * i
        ),
    )  # fmt: skip
    task: Any = SimpleNamespace(
        value_range=(0, 6), shape=(2,), gradients=SimpleNamespace(module=None)
    )
    seen: Any = SimpleNamespace(models=["a", "b"])
    found = Dager(message="x", rounds=(1,)).reconstruct(seen, task, NOTHING, NOTHING)
    assert made == [("a", 2, 7), ("b", 2, 7)]
    assert found.images.tolist() == [[[0, 1], [2, 3]], [[1, 1], [2, 3]]]
    assert found.losses.tolist() == [[0.0], [0.5]]
    assert found.labels.shape == (2, 2)


def test_metrics_of_text_have_their_ranges() -> None:
    assert attack._ranges(Name.LOSS) == ()
    assert attack._ranges(Name.TPR) == (attack.SHARE,)
    own: Any = SimpleNamespace(problem=SimpleNamespace(dataset=SimpleNamespace(vocabulary=["a"])))
    text = ScoredText._text(
        own, torch.tensor([[[0]], [[1]]]), torch.tensor([[[1]], [[0]]]), (3.0, 4.0)
    )
    assert text == (
        b'[{"agent": 3, "sequences": [{"truth": ["a"], "recovered": ["#1"]}]}, '
        b'{"agent": 4, "sequences": [{"truth": ["#1"], "recovered": ["a"]}]}]'
    )


class Layer(nn.Module):
    """Reads tokens one by one, or beside the token before; then classes."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(3, 4), nn.Linear(3, 2)
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        y = self.key(x) + self.value(x).repeat(1, 1, 2)
        return y.cumsum(1) / 2 if self.mixes else y


class Network(nn.Module):
    n_heads = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(5, 3)
        self.places = nn.Embedding(4, 3)
        self.layers = nn.ModuleList([Layer(True), Layer(False)])
        self.back = nn.Linear(4, 3)
        self.head = nn.Linear(4, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.back(self.layers[0](x))
        return self.head(self.layers[1](x)).mean(1)


@pytest.fixture(scope="module")
def a_front() -> TransformerFront:
    network = Network()
    model = torch.cat([p.detach().flatten() for p in network.parameters()])
    return TransformerFront(network, model, 4, 5)


FIRST = LayersOfOneInput(("layers.0.key", "layers.0.value"), 3)
SECOND = LayersOfOneInput(("layers.1.key", "layers.1.value"), 3)


def test_layers_that_read_the_same_are_one_block(a_front: TransformerFront) -> None:
    """The first one reads single tokens; the second one all before, of which it is causal."""
    assert a_front.first == [FIRST]
    assert a_front.after(FIRST) == SECOND
    assert a_front.after(SECOND) is None  # which has no number of its own
    assert a_front.after(LayersOfOneInput(("layers.0.key", "layers.0.more"), 3)) is None
    assert a_front.after(LayersOfOneInput(("head",), 4)) is None
    assert a_front.is_causal(SECOND)
    assert (a_front.n_heads(FIRST), a_front.n_classes()) == (2, 6)
    assert a_front.embedding is not None
    assert a_front.embedding.num_embeddings == 5
    network: Any = a_front.module
    ids = torch.tensor([[1, 2, 0, 4], [3, 3, 1, 0]])
    read = (network.embed(ids) + network.places(torch.arange(4))).detach()
    torch.testing.assert_close(a_front.inputs(ids, FIRST), read)
    torch.testing.assert_close(a_front.candidates(FIRST, torch.tensor([3]))[0], a_front.inputs(torch.tensor([[3] * 4]), FIRST)[0])  # fmt: skip
    torch.testing.assert_close(a_front.last_inputs(ids[:, :2], FIRST), read[:, 1])
    second = network.back(network.layers[0](read)).detach()
    torch.testing.assert_close(a_front.inputs(ids, SECOND), second)
    mixtures = torch.zeros(1, 4, 2)
    mixtures[0, 0] = torch.tensor([0.25, 0.75])
    mixed = a_front.mixed_inputs(mixtures, torch.tensor([4, 1]), FIRST)
    weight = network.embed.weight
    expected = network.places.weight.clone()
    expected[0] += 0.25 * weight[4] + 0.75 * weight[1]
    torch.testing.assert_close(mixed[0], expected)
    vector = torch.arange(float(len(a_front.model)))
    key, value = (a_front.parts(vector)[f"layers.0.{n}.weight"] for n in ("key", "value"))
    found = a_front.gradient(vector, FIRST)
    torch.testing.assert_close(found, torch.cat([key.mT, value.mT], dim=1))


def test_inputs_are_captured_some_at_a_time(monkeypatch, a_front: TransformerFront) -> None:
    ids = torch.arange(20).view(5, 4) % 5
    whole = a_front.inputs(ids, SECOND)
    runs: list[int] = []
    own = TransformerFront._run

    def run(self: TransformerFront, some: Tensor) -> None:
        runs.append(len(some))
        own(self, some)

    monkeypatch.setattr(TransformerFront, "_run", run)
    for at_once, sizes in ((2 * 12, [2, 2, 1]), (5 * 12, [5]), (1, [1] * 5)):
        monkeypatch.setattr(fronts, "_AT_ONCE", at_once)
        runs.clear()
        torch.testing.assert_close(a_front.inputs(ids, SECOND), whole)
        assert runs == sizes


def test_a_span_is_orthonormal_beside_what_is_common() -> None:
    e = torch.eye(4).double()
    one = Span(e[:, 1:3], e[:, :1], 3, True)
    assert one.rank == 2
    rows = torch.tensor([[9.0, 3.0, 0.0, 4.0], [5.0, 0.0, 0.0, 0.0]]).double()
    assert one.own(rows).tolist() == [[0.0, pytest.approx(0.6), 0.0, pytest.approx(0.8)], [0] * 4]
    assert one.outside(rows).tolist() == [pytest.approx(0.8), 0.0]
    share = one.p_values(vector(0.8, 0.0, 1.0))
    law = beta(1.0, 0.5)
    assert share.tolist() == pytest.approx([law.sf(0.36), 0.0, 1.0])
    assert one._replace(basis=e[:, :0]).p_values(vector(0.8)).tolist() == [1.0]
    assert one._replace(d=2).p_values(vector(0.8)).tolist() == [1.0]


def test_a_full_span_holds_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 of a block of width 4 in three outputs, or of three directions; one less is well."""
    tested: list[Any] = []
    front: Any = SimpleNamespace(
        n_tokens=100, gradient=lambda g, block: torch.zeros(4, 3),
        candidates=lambda block, tokens: (tested.append(len(tokens)), torch.ones(8, 2, 4))[1],
    )  # fmt: skip
    block = LayersOfOneInput(("a", "b"), 4)
    commons: list[int] = []

    def of(G: Tensor, rows: Tensor, common: Tensor, std: Any) -> Any:
        commons.append(common.shape[1])
        return SimpleNamespace(**told, of=common.shape[1])

    monkeypatch.setattr(span, "_span", of)
    told: dict[str, Any] = {}
    for rank, d, full in ((2, 4, False), (3, 4, True), (2, 2, True), (2, 3, False)):
        told.update(rank=rank, d=d, is_exact=True)
        if full:
            with pytest.raises(da.NotObservable, match="the gradient of a, b has the full rank"):
                span.span_of(front, block, NOTHING, None)
        else:
            one, other = span.span_of(front, block, NOTHING, None)
            assert one is other
    told["is_exact"] = False
    one, other = span.span_of(front, block, NOTHING, 0.5)
    assert (one.of, other.of) == (0, 1)  # type: ignore[attr-defined]
    assert set(tested) == {8}  # tokens of twice the width
    front.n_tokens = 5
    span.span_of(front, block, NOTHING, 0.5)
    assert tested[-1] == 5


def test_directions_beside_what_is_common_make_a_span() -> None:
    """Of rows in four directions the first is common; a gradient has two of the other three."""
    e = torch.eye(4).double()
    rows = torch.cat([e, e + e[:1]])[:, None]
    G = torch.stack([9 * e[0] + e[1], 3 * e[2], e[1] + e[2], 2 * e[1]], dim=1)
    found = span._span(G, rows, e[:, :1], None)
    assert (found.rank, found.d, found.is_exact) == (2, 3, True)
    torch.testing.assert_close(found.basis @ found.basis.mT, torch.diag(vector(0, 1, 1, 0)))
    whole = span._span(G, rows, e[:, :0], None)
    assert (whole.rank, whole.d) == (3, 4)
    noisy = span._span(G, rows, e[:, :1], 1e-3)
    assert (noisy.rank, noisy.is_exact) == (2, False)
    S = vector(*[1.0] * 11, 1e-6)  # the last one is less than noise leaves
    assert span._rank_in_noise(S, 12, 100, None) == 12
    assert span._rank_in_noise(vector(*[1.0] * 12), 12, 100, None) == 0


def test_a_token_is_found_below_the_level_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three tokens at two positions: under noise by the least p-value, 0.05 of six."""
    monkeypatch.setattr(span, "_TOKENS", 2)
    shares = torch.tensor([[0.5, 0.02], [0.021, 0.9], [0.0, 0.3]])
    front: Any = SimpleNamespace(n_tokens=3, candidates=lambda block, some: shares[some])
    exact: Any = SimpleNamespace(outside=lambda rows: rows, is_exact=True)
    outside, found = span.members(front, NOTHING, (exact, exact))
    assert torch.equal(outside, shares)
    assert found.tolist() == [[False, True], [False, False], [True, False]]
    noisy: Any = SimpleNamespace(
        outside=lambda rows: 2 * rows, is_exact=False,
        p_values=lambda tested: torch.where(tested > 0.7, 0.05 / 6, 0.0084),
    )  # fmt: skip
    outside, found = span.members(front, NOTHING, (noisy, noisy))
    assert torch.equal(outside, 2 * shares)
    assert found.tolist() == [[True, True], [True, True], [False, False]]
