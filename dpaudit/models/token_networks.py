"""Small transformers on token ids [b, length], a decoder and an encoder, for text.

Both have three layers, four heads and a perceptron twice as wide as the tokens' embeddings, and are
random. Departures: no dropout, whose masks would be drawn outside the audit's streams, and the
weights of the embedding are not those of the head.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LayerNorm, Linear, Sequential
from torch.nn import functional as F

from .networks import Attention, EncoderLayer, PositionEmbedding

WIDTH, N_HEADS, N_LAYERS = 64, 4, 3


def _embedding(n_tokens: int, width: int) -> nn.Embedding:
    """Without the draw of its numbers, for which the meta device would import torch's compiler."""
    return nn.Embedding(n_tokens, width, _weight=torch.empty(n_tokens, width))


class Decoder(nn.Module):
    """GPT-2 (Radford et al. 2019): causal attention on normalised tokens, logits at the last one.

    Args:
        n_tokens: the size of the vocabulary.
        length: tokens of a record.
        width: of an embedding, d.
        at_positions: logits at every token, [b, length, n_classes], as a language model has them.
    """

    def __init__(
        self, n_tokens: int, length: int, width: int, n_classes: int, at_positions: bool = False
    ) -> None:
        super().__init__()
        self.at_positions = at_positions
        self.tokens = _embedding(n_tokens, width)
        self.positions = PositionEmbedding(length, width)
        layers = (EncoderLayer(width, N_HEADS, 2 * width, causal=True) for _ in range(N_LAYERS))
        self.layers = Sequential(*layers)
        self.norm, self.head = LayerNorm(width), Linear(width, n_classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layers(self.positions(self.tokens(ids)))
        if self.at_positions:
            return self.head(self.norm(x))
        return self.head(self.norm(x[:, -1:])).flatten(1)


class PostNormLayer(nn.Module):
    """Attention and a perceptron, each added to its tokens, which are then normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm_1 = Attention(width, N_HEADS), LayerNorm(width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)
        self.norm_2 = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT (Devlin et al. 2019, arXiv:1810.04805): normalised embeddings, then post-norm layers.

    Departure: logits of the mean over all positions, because records begin with no class token.
    """

    def __init__(self, n_tokens: int, length: int, width: int, n_classes: int) -> None:
        super().__init__()
        self.tokens = _embedding(n_tokens, width)
        self.positions, self.norm = PositionEmbedding(length, width), LayerNorm(width)
        self.layers = Sequential(*(PostNormLayer(width) for _ in range(N_LAYERS)))
        self.head = Linear(width, n_classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layers(self.norm(self.positions(self.tokens(ids))))
        return self.head(x.mean(dim=1))


# from the size of the vocabulary, the length of a record, the width and the number of classes
TOKEN_NETWORKS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "bert-tiny": Encoder,
    "gpt-tiny": Decoder,
}
