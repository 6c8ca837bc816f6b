"""The front of a transformer: which layers read tokens one by one, and what they read.

Nothing is known of a network but that linear layers are modules: they are found by watching one
forward, and what they read is captured by another that stops there.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.models.models import parameters_of
from dpaudit.models.networks import call, logits_of

_AT_ONCE = 2**24  # numbers of what one layer reads, captured at a time
_HEADS = ("n_heads", "num_heads", "num_attention_heads")  # names in torch and transformers
_SAME = 1e-4  # relative to the norm of the input: less is rounding


class _Stop(Exception):
    """A forward has come far enough."""


class LayersOfOneInput(NamedTuple):
    """Linear layers that read the same, [b, t, width]."""

    layers: tuple[str, ...]
    width: int


class TransformerFront:
    """A network with its numbers, up to its second block of attention.

    Args:
        module: the architecture, from token ids [b, length] to logits.
        model: its parameters [d].

    Raises:
        NotObservable: no linear layer that is trained reads tokens one by one.
    """

    def __init__(self, module: nn.Module, model: Tensor, length: int, n_tokens: int) -> None:
        self.module, self.model, self.length, self.n_tokens = module, model, length, n_tokens
        self._tensors = parameters_of(module, model) | dict(module.named_buffers())
        self._weights = {
            path: f"{path}.{name}".lstrip(".")
            for path, layer in module.named_modules()
            if (name := _weight_of(layer)) and f"{path}.{name}".lstrip(".") in self._tensors
        }
        trained = {name for name, _ in module.named_parameters()}
        self._weights = {path: name for path, name in self._weights.items() if name in trained}
        self.first = [block for block in self._blocks() if not self._mixes(block)]
        if not self.first:
            raise da.NotObservable(
                "DPA055",
                "text is recovered from a linear layer that is trained and reads tokens one by "
                "one, as the first attention layer of a transformer does; this network has none",
            )

    def after(self, block: LayersOfOneInput) -> LayersOfOneInput | None:
        """The block like this of the next layer of the transformer; None: there is none."""
        named = [re.sub(r"(?<![^.])0(?![^.])", "1", path, count=1) for path in block.layers]
        known = [path for path in named if path in self._weights]
        if known == list(block.layers) or len(known) != len(named):
            return None
        return LayersOfOneInput(tuple(known), block.width)

    def is_causal(self, block: LayersOfOneInput) -> bool:
        """Whether what a block reads of a token depends on no later token."""
        ids = torch.zeros(2, self.length, dtype=torch.long)
        ids[1, -1] = 1
        one, other = self.inputs(ids, block)[:, 0]
        return bool((one - other).norm() <= _SAME * one.norm())

    @torch.no_grad()
    def inputs(self, ids: Tensor, block: LayersOfOneInput) -> Tensor:
        """What a block reads of token ids [b, t]: [b, t, width]."""
        found: list[Tensor] = []
        size = max(1, _AT_ONCE // (ids.shape[1] * block.width))

        def capture(layer: nn.Module, given: Any) -> None:
            found.append(given[0].detach())
            raise _Stop

        hook = self.module.get_submodule(block.layers[0]).register_forward_pre_hook(capture)
        try:
            for some in ids.split(size):
                self._run(some.to(next(iter(self._tensors.values())).device))
        finally:
            hook.remove()
        return torch.cat(found)

    @property
    def embedding(self) -> nn.Embedding | None:
        """The embedding of the vocabulary; None: there is none, or more than one."""
        every = [m for m in self.module.modules() if isinstance(m, nn.Embedding)]
        fit = [one for one in every if one.num_embeddings == self.n_tokens]
        return fit[0] if len(fit) == 1 else None

    def mixed_inputs(self, mixtures: Tensor, tokens: Tensor, block: LayersOfOneInput) -> Tensor:
        """What a block reads of mixtures [b, t, n] of n tokens: [b, t, width], differentiable."""
        found: list[Tensor] = []

        def mix(layer: nn.Module, given: Any, embedded: Tensor) -> Tensor:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            return mixtures @ weight[tokens]

        def capture(layer: nn.Module, given: Any) -> None:
            found.append(given[0])
            raise _Stop

        assert self.embedding is not None
        first = self.module.get_submodule(block.layers[0])
        hooks = self.embedding.register_forward_hook(mix), first.register_forward_pre_hook(capture)
        try:
            ids = torch.zeros(mixtures.shape[:2], dtype=torch.long, device=mixtures.device)
            call(self.module, self._tensors, ids)
        except _Stop:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return found[0]

    def n_heads(self, block: LayersOfOneInput) -> int | None:
        """How many heads the attention has that a block belongs to; None: it does not say."""
        path = block.layers[0]
        while path:
            path = path.rpartition(".")[0]
            module = self.module.get_submodule(path)
            for name in _HEADS:
                if isinstance(found := getattr(module, name, None), int):
                    return found
        return None

    @torch.no_grad()
    def n_classes(self) -> int:
        """How many logits the network gives."""
        ids = torch.zeros(1, self.length, dtype=torch.long, device=self.model.device)
        return logits_of(call(self.module, self._tensors, ids)).shape[-1]

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters' gradients in a gradient [d], by name."""
        return parameters_of(self.module, vector)

    def last_inputs(self, prefixes: Tensor, block: LayersOfOneInput) -> Tensor:
        """What a block reads of the last token of prefixes [b, p], if it is causal: [b, width].

        Networks that take full records alone are given prefixes with token 0 behind them.
        """
        p = prefixes.shape[1]
        try:
            return self.inputs(prefixes, block)[:, -1]
        except (RuntimeError, ValueError, IndexError):
            padded = torch.nn.functional.pad(prefixes, (0, self.length - p))
            return self.inputs(padded, block)[:, p - 1]

    def candidates(self, block: LayersOfOneInput, tokens: Tensor) -> Tensor:
        """What a first block reads of each of some tokens at each position, [n, length, width]."""
        return self.inputs(tokens[:, None].expand(-1, self.length), block)

    def gradient(self, vector: Tensor, block: LayersOfOneInput) -> Tensor:
        """The gradient of a block's weights in a gradient [d], [width, outputs of all layers]."""
        parts = parameters_of(self.module, vector)
        found = [parts[self._weights[path]] for path in block.layers]
        kinds = [type(self.module.get_submodule(path)).__name__ for path in block.layers]
        pairs = zip(found, kinds, strict=True)
        return torch.cat([g if kind == "Conv1D" else g.mT for g, kind in pairs], dim=1)

    def _blocks(self) -> Iterable[LayersOfOneInput]:
        """All that read, by what they read, in the order of a forward."""
        calls: list[tuple[str, Tensor]] = []

        def watch(path: str) -> Callable[[nn.Module, Any], None]:
            return lambda layer, given: calls.append((path, given[0]))

        hooks = [
            self.module.get_submodule(path).register_forward_pre_hook(watch(path))
            for path in self._weights
        ]
        try:
            self._run(torch.zeros(1, self.length, dtype=torch.long))
        finally:
            for hook in hooks:
                hook.remove()
        groups: dict[tuple[int, int], list[str]] = {}
        for path, x in calls:
            if x.ndim == 3 and x.shape[1] == self.length:
                groups.setdefault((x.data_ptr(), x.shape[-1]), []).append(path)
        return [LayersOfOneInput(tuple(paths), width) for (_, width), paths in groups.items()]

    def _mixes(self, block: LayersOfOneInput) -> bool:
        """Whether what it reads of the last token depends on the others."""
        ids = torch.zeros(2, self.length, dtype=torch.long)
        ids[1, :-1] = 1
        one, other = self.inputs(ids, block)[:, -1]
        return bool((one - other).norm() > _SAME * one.norm())

    @torch.no_grad()
    def _run(self, ids: Tensor) -> None:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            call(self.module, self._tensors, ids)
        except _Stop:
            pass
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def _weight_of(layer: nn.Module) -> str | None:
    """The name of the matrix that multiplies what a layer reads; None: it has none."""
    if isinstance(layer, nn.MultiheadAttention):
        return "in_proj_weight"
    return "weight" if isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D" else None
