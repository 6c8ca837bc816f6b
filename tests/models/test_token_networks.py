"""Gradients of transformers on token ids, beside autograd's record by record."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpaudit.errors import ConfigError
from dpaudit.models.gradients import Gradients, OneByOne
from dpaudit.models.models import (
    architecture,
    build_network,
    initial_parameters,
    refuse_impure,
    trained_parameters,
)
from dpaudit.models.stacked import Stacked
from dpaudit.rng import Streams

N_TOKENS, LENGTH, CLASSES = 11, 5, 3


def of_autograd(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Each record's gradient of what is trained, [b, d]."""
    parameters = trained_parameters(module)
    rows = []
    for record, label in zip(x, y, strict=True):
        logits = module(record[None])
        logits = getattr(logits, "logits", logits)
        loss = cross_entropy(logits[:, -1] if logits.ndim == 3 else logits, label[None])
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = zip(parameters, parts, strict=True)
        rows.append(torch.cat([(p * 0 if g is None else g).flatten() for p, g in pairs]))
    return torch.stack(rows).detach()


def assert_answers(gradients: Gradients, X: Tensor, x: Tensor, y: Tensor, each: Tensor) -> None:
    """One by one, and clipped and summed: as the gradients of records [n, d] are."""
    found = gradients.per_record(X, x[None], y[None])[0]
    torch.testing.assert_close(found, each, rtol=1e-4, atol=1e-6)
    C = float(each.norm(dim=1).median())
    clipped = (each * (C / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    total = gradients.clipped_sum(X, x[None], y[None], C)[0]
    torch.testing.assert_close(total, clipped, rtol=1e-4, atol=1e-5)


def assert_gradients(module: nn.Module, x: Tensor, y: Tensor, n_classes: int = CLASSES) -> None:
    """One by one, clipped and summed: as autograd has them."""
    each = of_autograd(module, x, y)
    X = nn.utils.parameters_to_vector(trained_parameters(module)).detach()[None]
    shape = tuple(x.shape[1:])
    gradients = Gradients(architecture(module, shape, n_classes, x.dtype), shape, x.dtype)
    assert_answers(gradients, X, x, y, each)


def tokens(b: int = 3, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(N_TOKENS, (b, length), generator=generator)
    return x, torch.randint(CLASSES, (b,), generator=generator)


def own(name: str) -> nn.Module:
    """A network of ours, with numbers."""
    module = build_network(name, (LENGTH,), CLASSES, N_TOKENS, 8)
    x = initial_parameters(module, Streams(1)("initialisation"))
    module = module.to_empty(device="cpu")
    nn.utils.vector_to_parameters(x, module.parameters())
    return module


@pytest.mark.parametrize("name", ["bert-tiny", "gpt-tiny"])
def test_token_networks_have_the_gradients_of_autograd(name: str) -> None:
    module = own(name)
    assert isinstance(Gradients(module, (LENGTH,), torch.long)._engine, Stacked)
    assert_gradients(module, *tokens())


def test_models_of_several_holders_read_their_own_batches() -> None:
    module = build_network("gpt-tiny", (LENGTH,), CLASSES, N_TOKENS, 8)
    X = torch.randn(3, Gradients(module).d, generator=torch.Generator().manual_seed(1))
    x, y = tokens(6)
    x, y, holders = x.view(2, 3, -1), y.view(2, 3), torch.tensor([0, 1, 0])
    together = Gradients(module, None, torch.long).clipped_sum(X, x, y, 1.0, holders=holders)
    for i, h in enumerate(holders):
        alone = OneByOne(module, False).records(X[i][None, None], x[h][None], y[h][None], False)
        each = alone.each()[0, :, 0]
        expected = (each * (1 / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        torch.testing.assert_close(together[i], expected, rtol=1e-4, atol=1e-5)


def _next_tokens(logits: Tensor, y: Tensor) -> Tensor:
    """Log odds of labels at positions [t] by logits [t, n_classes], record by record."""
    p = logits.double().softmax(-1).gather(-1, y[:, None])[:, 0]
    return (p / (1 - p)).log()


@pytest.mark.parametrize("name", ["gpt-tiny", "tied"])
def test_labels_at_every_position_have_autograds_mean_loss(name: str) -> None:
    """Of stacked layers, and of a network that runs by itself."""
    x, y = tokens()[0] % CLASSES, tokens()[0].flip(0, 1) % CLASSES
    module = Tied()
    if name == "gpt-tiny":
        empty = build_network(name, (LENGTH,), CLASSES, N_TOKENS, 8, at_positions=True)
        start = initial_parameters(empty, Streams(1)("initialisation"))
        module = empty.to_empty(device="cpu")
        nn.utils.vector_to_parameters(start, module.parameters())
    built = architecture(module, (LENGTH,), CLASSES, torch.long, CLASSES - 1, LENGTH)
    gradients = Gradients(built, (LENGTH,), torch.long, LENGTH)
    assert isinstance(gradients._engine, Stacked if name == "gpt-tiny" else OneByOne)
    parameters = list(module.parameters())
    X = nn.utils.parameters_to_vector(parameters).detach()[None]
    logits = [module(record[None])[0] for record in x]
    losses = [cross_entropy(one, own) for one, own in zip(logits, y, strict=True)]
    each = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]) for loss in losses]
    )
    assert_answers(gradients, X, x, y, each)
    loss, accuracy = gradients.evaluate(X, x[None], y[None])
    assert float(loss) == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-5)
    hits = torch.stack([one.argmax(-1) == own for one, own in zip(logits, y, strict=True)])
    assert float(accuracy) == pytest.approx(float(hits.double().mean()), rel=1e-5)
    odds = torch.stack([_next_tokens(*pair).mean() for pair in zip(logits, y, strict=True)])
    found = gradients.log_odds(X, x[None], y[None])[0]
    torch.testing.assert_close(found.double(), odds.detach(), rtol=1e-4, atol=1e-5)


def test_logits_at_every_position_are_asked_of_decoders_alone() -> None:
    with pytest.raises(ConfigError, match="bert-tiny reads the tokens that it would have to"):
        build_network("bert-tiny", (LENGTH,), CLASSES, N_TOKENS, 8, at_positions=True)
    with pytest.raises(ConfigError, match=r"into \[2, 3\]; expected \[2, 5, 3\].* every position"):
        architecture(own("gpt-tiny"), (LENGTH,), CLASSES, torch.long, 0, LENGTH)


class Tied(nn.Module):
    """A language model whose head is its embedding; a logit for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(CLASSES, 4), nn.Linear(4, 4)
        self.register_buffer("offset", torch.arange(4.0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.tokens(ids) + self.offset).tanh() @ self.tokens.weight.T


def test_tied_embeddings_and_constant_buffers_are_taken() -> None:
    x, y = tokens()
    assert_gradients(Tied(), x % CLASSES, y)


def test_parameters_that_are_one_stay_one() -> None:
    module = Tied()
    module.other = module.layer
    assert Gradients(architecture(module, (LENGTH,), CLASSES, torch.long)).d == CLASSES * 4 + 20


def test_networks_may_have_more_classes_and_no_fewer_tokens() -> None:
    """As a language model has a logit for every token, and data have labels of some."""
    module = own("bert-tiny")
    assert Gradients(architecture(module, (LENGTH,), CLASSES - 1, torch.long)).d
    with pytest.raises(ConfigError, match=r"expected \[2, 4\], one logit for each class"):
        architecture(module, (LENGTH,), CLASSES + 1, torch.long)
    architecture(module, (LENGTH,), CLASSES, torch.long, N_TOKENS - 1)
    with pytest.raises(ConfigError, match=f"token ids up to {N_TOKENS}: index out of range"):
        architecture(module, (LENGTH,), CLASSES, torch.long, N_TOKENS)


def test_frozen_parameters_are_no_part_of_message_or_clip() -> None:
    module = own("bert-tiny")
    for name, p in module.named_parameters():
        p.requires_grad_("tokens" not in name and "positions" not in name)
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    assert frozen == (N_TOKENS + LENGTH) * 8
    gradients = Gradients(architecture(module, (LENGTH,), CLASSES, torch.long), (LENGTH,))
    assert gradients.d == sum(p.numel() for p in module.parameters()) - frozen
    assert_gradients(module, *tokens())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_is_taken_or_says_what_to_do() -> None:
    x, y = torch.randn(3, 4), torch.tensor([0, 2, 1])
    assert_gradients(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), x, y)
    with pytest.raises(ConfigError, match=r"use torch.nn.utils.parametrizations.weight_norm"):
        architecture(nn.utils.weight_norm(nn.Linear(4, 3)), (4,), 3)


def test_dropout_that_is_on_is_refused_in_a_line() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
    with pytest.raises(ConfigError, match=r"dropout masks \(1\).*call eval\(\)"):
        architecture(module, (4,), 3)
    architecture(module.eval(), (4,), 3)


class Own(nn.Module):
    """Tokens' mean embedding, and what a caller's forward may make of its logits."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.head, self.change = (
            nn.Embedding(N_TOKENS, 4),
            nn.Linear(4, CLASSES),
            change,
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.change(self.head(self.tokens(ids).mean(1)))


def _refused(module: nn.Module) -> str:
    x = nn.utils.parameters_to_vector(module.parameters()).detach()
    records = tokens()[0][:2]
    with pytest.raises(ConfigError) as error:
        refuse_impure("Own", architecture(module, (LENGTH,), CLASSES, torch.long), x, records)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda z: z - z.mean(0), "gives a record other logits in a batch than alone"),
        (lambda z: z + torch.rand(CLASSES), "draws numbers, outside of the audit's random streams"),
        (lambda z: z.detach(), "gives logits that depend on no parameter"),
        (lambda z: z / 0 * 0, "gives logits that are no finite numbers"),
        (lambda z: {}["lost"], "cannot take records of shape"),
    ],
)
def test_logits_that_are_no_function_of_a_record_are_refused(change: Any, said: str) -> None:
    torch.manual_seed(0)
    assert said in _refused(Own(change))


def test_parameters_without_numbers_are_refused() -> None:
    module = Own(lambda z: z)
    module.head.weight.data.fill_(torch.nan)
    assert "has parameters that are no finite numbers" in _refused(module)
    module.head = nn.LazyLinear(CLASSES)
    with pytest.raises(ConfigError, match=r"parameters of no shape yet \(head.weight\)"):
        architecture(module, (LENGTH,), CLASSES, torch.long)


def test_a_layer_that_vmap_does_not_take_runs_record_by_record() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.gru = nn.Embedding(N_TOKENS, 4), nn.GRU(4, 4, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            return self.gru(self.tokens(ids))[0][:, -1]

    x, y = tokens()
    assert_gradients(Recurrent(), x, y, 4)


@pytest.mark.parametrize(
    ("name", "n_tokens", "width", "said"),
    [
        ("gpt-tiny", 0, None, "gpt-tiny takes token ids, and these data are numbers"),
        ("mlp", 9, None, "mlp takes numbers, and these data are token ids"),
        ("gpt-tiny", 9, 6, "gpt-tiny has 4 heads; expected a multiple of 4"),
        ("mlp", 0, 8, "mlp has none to choose; bert-tiny and gpt-tiny have"),
    ],
)
def test_networks_and_records_that_do_not_fit_are_refused(
    name: str, n_tokens: int, width: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build_network(name, (5,), 3, n_tokens, width)


def _of_transformers(kind: str) -> tuple[nn.Module, Tensor]:
    """A small random network of `transformers`, and records for it."""
    from dpaudit.data.vision import torchvision

    torchvision()  # which transformers imports, and which needs an operator that torch may lack
    t = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"vocab_size": N_TOKENS, "num_labels": CLASSES}
    gpt = {"n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
    other = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "vit":
        config = t.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **other)
        return t.ViTForImageClassification(config).eval(), torch.rand(3, 1, 8, 8)
    if kind == "bert":
        config = t.BertConfig(max_position_embeddings=8, **sizes, **other)
        return t.BertForSequenceClassification(config).eval(), tokens()[0]
    network = {"gpt": t.GPT2ForSequenceClassification, "gpt-lm": t.GPT2LMHeadModel}
    named = network.get(kind, t.GPT2ForSequenceClassification)
    module = named(t.GPT2Config(bos_token_id=1, eos_token_id=1, **sizes, **gpt)).eval()
    if kind == "lora":
        peft = pytest.importorskip("peft")
        chosen = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="SEQ_CLS")
        module = peft.get_peft_model(module, chosen).eval()
    return module, tokens()[0].clamp(min=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "gpt-lm", "bert", "vit", "lora"])
def test_transformers_have_the_gradients_of_autograd(kind: str) -> None:
    module, x = _of_transformers(kind)
    n_classes = N_TOKENS if kind == "gpt-lm" else CLASSES
    assert_gradients(module, x, tokens()[1], n_classes)
    if kind == "lora":
        trained = [n for n, p in module.named_parameters() if p.requires_grad]
        assert all("lora_" in name or "modules_to_save" in name for name in trained)
