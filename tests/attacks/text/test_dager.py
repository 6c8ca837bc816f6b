"""Text from gradients: exact without noise, by tests of known level with it."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

import dpaudit
from dpaudit.attack.observed import ObservedGradients
from dpaudit.attack.text_metrics import blind, rouge, score
from dpaudit.attacks.text import attack
from dpaudit.attacks.text.attack import RecoveredBatch, recovered
from dpaudit.attacks.text.front import TransformerFront
from dpaudit.attacks.text.peeling import Peeling
from dpaudit.attacks.text.span import Span, _rank_of_exact, members, span_of
from dpaudit.data.datasets import Dataset
from dpaudit.data.text import load_text
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Role
from dpaudit.files.options import TextOptions
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import (
    architecture,
    build_network,
    initial_parameters,
    trained_parameters,
)
from dpaudit.models.token_networks import Decoder
from dpaudit.rng import Streams

LENGTH = 8


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_text(None, TextOptions(length=LENGTH, vocabulary=300))


def network(name: str, data: Dataset, width: int) -> tuple[nn.Module, Tensor]:
    module = build_network(name, tuple(data.x.shape[1:]), data.n_classes, data.n_tokens, width)
    return module, initial_parameters(module, Streams(1)("initialisation"))


def attacked(
    name: str, data: Dataset, batch_size: int, width: int = 64, std: float = 0.0
) -> tuple[RecoveredBatch, Tensor]:
    """What the attack makes of a batch's mean gradient, and the batch."""
    module, x = network(name, data, width)
    ids, y = data.x[:batch_size], data.y[:batch_size]
    g = Gradients(module, None, torch.long).mean(x[None], ids[None], y[None])
    g = g + std * torch.randn(g.shape, generator=Streams(2)("noise"))
    observed = ObservedGradients(g, x[None], batch_size, None, torch.tensor([std]) if std else None)
    front = TransformerFront(module, x, data.x.shape[1], data.n_tokens)
    gradients = Gradients(module, None, torch.long)
    return recovered(front, observed, 0, gradients, lambda done, total: None), ids


def test_text_is_aligned_by_tokens_then_by_sequences() -> None:
    """As the best of all orders, whichever comes first: seed 0, batches of up to 4 short rows."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        b, length = rng.integers(1, 5), rng.integers(1, 4)
        truth, found = torch.from_numpy(rng.integers(0, 3, (2, b, length)))
        rights = [truth == found[list(order)] for order in permutations(range(b))]
        best = max((r.double().mean().item(), r.all(1).double().mean().item()) for r in rights)
        scores = score(truth[None], found[None])
        assert (scores.tokens[0], scores.sequences[0]) == pytest.approx(best)


@pytest.mark.parametrize(
    ("name", "batch_size", "width"),
    [("gpt-tiny", 1, 64), ("gpt-tiny", 6, 64), ("bert-tiny", 1, 64), ("bert-tiny", 5, 64)],
)
def test_batches_are_recovered_without_noise(
    data: Dataset, name: str, batch_size: int, width: int
) -> None:
    found, ids = attacked(name, data, batch_size, width)
    scores = score(ids[None], found.ids[None])
    assert scores.tokens == scores.sequences == 1
    assert set(found.found.nonzero().flatten().tolist()) == set(ids.flatten().tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "width"),
    [
        ("gpt-tiny", 1, 64),
        ("gpt-tiny", 8, 256),
        ("gpt-tiny", 32, 640),
        ("bert-tiny", 1, 64),
        ("bert-tiny", 8, 256),
        ("bert-tiny", 32, 640),
    ],
)
def test_sequences_of_16_tokens_are_recovered_without_noise(
    name: str, batch_size: int, width: int
) -> None:
    data = load_text(None, TextOptions(vocabulary=200))
    found, ids = attacked(name, data, batch_size, width)
    assert score(ids[None], found.ids[None]).sequences == 1


def test_a_sequence_leaves_with_the_gradient_of_its_record(data: Dataset) -> None:
    """By its clipped gradient and its own label; one with another token is in no batch."""
    module, x = network("bert-tiny", data, 64)
    ids, y, gradients = data.x[:4], data.y[:4], Gradients(module, None, torch.long)
    vector = gradients.clipped_sum(x[None], ids[None], y[None], 0.5)[0]
    front = TransformerFront(module, x, LENGTH, data.n_tokens)
    second = front.after(front.first[0])
    assert second is not None
    span, _ = span_of(front, second, vector, None)
    first = front.first[0], span_of(front, front.first[0], vector, None)[0]
    test = Peeling(front, gradients, 0.5, first, second, span, [], vector, 4).test()
    one = test(ids[2])
    assert one is not None
    alone = gradients.clipped_sum(x[None], ids[None, 2:3], y[None, 2:3], 0.5)[0]
    torch.testing.assert_close(one.gradient, alone)
    other = ids[2].clone()
    other[3] = ids[1, 3]
    assert test(other) is None


def test_more_tokens_than_directions_are_refused_in_a_line(data: Dataset) -> None:
    with pytest.raises(NotObservable, match=r"has the full rank \d+: .* smaller batch"):
        attacked("gpt-tiny", data, 40, 16)


def test_a_single_direction_has_no_rank_without_noise() -> None:
    """As the gradient of a LoRA adapter of rank 1 has: it may be all signal."""
    assert _rank_of_exact(torch.ones(1)) is None


def test_no_token_is_found_in_noise_alone(data: Dataset) -> None:
    """A correct program fails with probability 0.05 over fresh seeds, in each of two ways."""
    module, x = network("gpt-tiny", data, 64)
    front = TransformerFront(module, x, LENGTH, data.n_tokens)
    noise = torch.randn(len(x), generator=Streams(3)("noise"))
    for std in (1.0, None):
        spans = span_of(front, front.first[0], noise, std)
        assert not members(front, front.first[0], spans)[1].any()


def test_noise_that_is_known_or_estimated_hides_most_tokens(data: Dataset) -> None:
    quiet, ids = attacked("gpt-tiny", data, 1, std=1e-4)
    loud, _ = attacked("gpt-tiny", data, 1, std=1.0)
    true = ids.unique()
    assert quiet.found[true].double().mean() > 0.8
    assert quiet.found.sum() <= len(true) + 1
    assert loud.found.sum() <= 1


def test_rows_of_random_direction_have_the_stated_law() -> None:
    """Kolmogorov and Smirnov; a correct program fails with probability 1e-3 over fresh seeds."""
    d, r = 40, 9
    generator = Streams(4)("rows")
    basis = torch.linalg.qr(torch.randn(d, r, dtype=torch.float64, generator=generator))[0]
    span = Span(basis, basis.new_zeros(d, 0), d, False)
    rows = torch.randn(4000, d, dtype=torch.float64, generator=generator)
    assert kstest(span.p_values(span.outside(rows)).numpy(), "uniform").pvalue > 1e-3


def test_a_vocabulary_beyond_memory_is_refused_at_once(monkeypatch) -> None:
    monkeypatch.setattr(attack, "available", lambda: 10**6)
    options = {
        "data": {"name": "text", "n_agents": 3, "text": {"vocabulary": 300, "length": 8}},
        "graph": {"name": "ring"},
        "model": {"name": "gpt-tiny", "width": 64},
        "defense": {"name": "d-psgd", "n_rounds": 2, "batch_size": 2},
        "attack": [{"name": "dager", "message": "gradient", "rounds": [2]}],
        "seed": 1,
    }
    with pytest.raises(ConfigError, match="3 agents .* take 3.+ MB of memory, and 1 MB is free"):
        dpaudit.audit(AuditConfig.from_dict(options), cores=1)


class _Images(nn.Module):
    """Tokens are mixed before the first linear layer reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids).cumsum(1).flip(1) + self.tokens(ids).mean(1, True))[:, 0]


def test_a_network_without_attention_is_refused_in_a_line() -> None:
    module = _Images()
    x = nn.utils.parameters_to_vector(module.parameters()).detach()
    with pytest.raises(NotObservable, match="reads tokens one by one"):
        TransformerFront(module, x, 5, 9)


def test_rouge_has_the_values_of_its_definition() -> None:
    assert rouge([1, 2, 3], [1, 2, 3], 1) == rouge([1, 2, 3], [1, 2, 3], 2) == 1
    assert rouge([1, 1, 2], [1, 3, 3], 1) == pytest.approx(1 / 3)
    assert rouge([1, 2, 3, 4], [2, 3, 9, 1], 2) == pytest.approx(1 / 3)
    assert rouge([1], [1], 2) == 0


def test_sequences_are_aligned_before_they_are_scored() -> None:
    truth = torch.tensor([[[1, 2], [3, 4]]])
    scores = score(truth, truth.flip(1))
    assert (scores.tokens, scores.sequences, scores.order.tolist()) == (1, 1, [[1, 0]])


def test_blind_guesses_are_drawn_from_public_text() -> None:
    public = torch.tensor([[1, 2, 3]] * 4)
    guesses = blind(public, (2, 3), Streams(1)("blind"))
    assert {tuple(t.shape) for t in guesses.values()} == {(2, 3, 3)}
    chains = guesses["bigrams of public text"].flatten(0, 1).tolist()
    follows = {1: {2}, 2: {3}, 3: {1, 2, 3}}
    assert all(b in follows[a] for row in chains for a, b in pairwise(row))


def _language() -> tuple[Dataset, nn.Module]:
    data = load_text(None, TextOptions(length=LENGTH, vocabulary=300, labels="position"))
    sizes = (LENGTH,), data.n_classes, data.n_tokens, 64
    return data, build_network("gpt-tiny", *sizes, at_positions=True)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_loss_at_every_position_reveals_a_decoder_s_text(clip_norm: float | None) -> None:
    """The mean cross-entropy of the token behind each, summed over records, clipped or not."""
    data, module = _language()
    x = initial_parameters(module, Streams(1)("initialisation"))
    ids, y = data.x[:6], data.y[:6]
    assert ids[:, 1:].equal(y[:, :-1])
    gradients = Gradients(module, None, torch.long, LENGTH)
    g = gradients.clipped_sum(x[None], ids[None], y[None], clip_norm) / 6
    observed = ObservedGradients(g, x[None], 6, clip_norm)
    front = TransformerFront(module, x, LENGTH, data.n_tokens)
    found = recovered(front, observed, 0, gradients, lambda done, total: None)
    assert score(ids[None], found.ids[None]).sequences == 1


class Unplaced(Decoder):
    """Without positions, so that one token again and again has rows in the span as well."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.tokens(ids))))


@pytest.mark.slow
def test_sequences_that_cover_the_span_are_taken_before_others() -> None:
    data = _language()[0]
    module = Unplaced(data.n_tokens, LENGTH, 64, data.n_classes)
    x = initial_parameters(module, Streams(1)("initialisation"))
    gradients = Gradients(module, (LENGTH,), torch.long, LENGTH)
    for rows in ([0, 1, 2], [0, 1, 1]):  # one of them twice
        ids, y = data.x[rows], data.y[rows]
        observed = ObservedGradients(gradients.mean(x[None], ids[None], y[None]), x[None], 3, None)
        front = TransformerFront(module, x, LENGTH, data.n_tokens)
        found = recovered(front, observed, 0, gradients, lambda done, total: None)
        recovered_rows = {tuple(row) for row in found.ids.tolist()}
        assert recovered_rows == {tuple(row) for row in ids.tolist()}


@pytest.mark.slow
def test_an_audit_takes_labels_at_every_position() -> None:
    """Every attack on records: text is recovered exactly without noise, members are matched."""
    options = {
        "data": {
            "name": "text", "n_agents": 3,
            "text": {"vocabulary": 120, "length": 5, "labels": "position"},
        },
        "graph": {"name": "ring"},
        "model": {"name": "gpt-tiny", "width": 32},
        "defense": {
            "name": "dp-dpsgd", "n_rounds": 3, "batch_size": 2, "clip_norm": 1.0,
            "learning_rate": 0.5, "noise_multiplier": 0.01,
        },
        "claim": [
            {"text": "t", "epsilon": 3.0, "delta": 1e-5, "scope": "run", "adjacency": "add-remove"}
        ],
        "threat_model": [
            {"name": "links", "kind": "external"},
            {"name": "end", "kind": "final-model", "access": "black-box"},
        ],
        "attack": [
            {"name": "dager", "message": "noisy-gradient", "rounds": [2], "batch_sizes": [2]},
            {"name": "membership", "rounds": [2], "candidates": 4},
            {"name": "shadow-models", "shadows": 8, "targets": 4},
            {"name": "canaries", "kind": "mislabelled", "canaries": 30, "references": 8},
            {"name": "sensitivity", "rounds": [2]},
        ],
        "seed": 1,
    }  # fmt: skip
    for one in options["attack"][:2]:
        one["threat_models"] = ["links"]
    result = dpaudit.audit(AuditConfig.from_dict(options), cores=1)
    texts = [f for f in result.findings if f.role == Role.TEXT_RECOVERY]
    (exact,) = [f for f in texts if f.world == "no-defense"]
    assert exact.metrics["rouge-1"].value == exact.metrics["rouge-2"].value == 1
    (seen,) = [f for f in result.findings if f.attack == "membership" and f.world == "no-defense"]
    assert seen.metrics["matched"].value == 1
    assert {f.attack for f in result.findings} >= {"shadow-models", "canaries", "sensitivity"}
    assert result.exit_code == 1  # so little noise supports no epsilon of 3


def _bert(width: int) -> tuple[nn.Module, Tensor]:
    """One of `transformers`, random, with a class for a sequence, and its parameters."""
    from dpaudit.data.vision import torchvision

    torchvision()  # which transformers imports, and which needs an operator that torch may lack
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = t.BertConfig(
        vocab_size=200, hidden_size=width, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=2 * width, max_position_embeddings=LENGTH, num_labels=5,
    )  # fmt: skip
    given = t.BertForSequenceClassification(config).eval()
    module = architecture(given, (LENGTH,), 5, torch.long)
    return module, nn.utils.parameters_to_vector(trained_parameters(given)).detach()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_size", [1, 2])
def test_text_is_recovered_from_bert_of_transformers(batch_size: int) -> None:
    module, x = _bert(64)
    shape, generator = (batch_size, LENGTH), torch.Generator().manual_seed(5)
    ids, y = torch.randint(1, 200, shape, generator=generator), torch.arange(batch_size)
    gradients = Gradients(module, None, torch.long)
    observed = ObservedGradients(
        gradients.mean(x[None], ids[None], y[None]), x[None], batch_size, None
    )
    front = TransformerFront(module, x, LENGTH, 200)
    found = recovered(front, observed, 0, gradients, lambda done, total: None)
    assert score(ids[None], found.ids[None]).sequences == 1


def _lora(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A GPT-2 whose adapters are trained alone, its parameters, and a gradient of a batch of 1."""
    from dpaudit.data.vision import torchvision

    torchvision()  # which transformers imports, and which needs an operator that torch may lack
    t, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    config = t.GPT2Config(
        vocab_size=60, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=2, num_labels=3,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    chosen = peft.LoraConfig(r=12, target_modules=["c_attn"], task_type="SEQ_CLS")
    given = peft.get_peft_model(t.GPT2ForSequenceClassification(config), chosen).eval()
    module = architecture(given, (LENGTH,), 3, torch.long)
    x = nn.utils.parameters_to_vector(trained_parameters(given)).detach()
    ids = torch.randint(2, 60, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    gradients = Gradients(module, None, torch.long)
    for i in range(steps + 1):
        g = gradients.mean(x[None], ids[None], torch.tensor([[i % 3]]))[0]
        x = x - 0.5 * g * (i < steps)
    return module, x, g


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("steps", "width"), [(0, 12), (5, 32)])
def test_tokens_are_recovered_from_adapters(steps: int, width: int) -> None:
    """While B is 0, from the gradient of B; later from that of A."""
    module, x, g = _lora(steps)
    ids = torch.randint(2, 60, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    front = TransformerFront(module, x, LENGTH, 60)
    block = next(b for b in front.first if front.gradient(g, b).any())
    assert block.width == width
    observed = ObservedGradients(g[None], x[None], 1, None)
    gradients = Gradients(module, None, torch.long)
    found = recovered(front, observed, 0, gradients, lambda done, total: None)
    assert set(found.found.nonzero().flatten().tolist()) == set(ids.flatten().tolist())
    assert torch.equal(found.ids, ids)
