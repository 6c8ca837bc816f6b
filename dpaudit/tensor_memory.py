"""How much memory a computation takes: the bytes of the tensors that live at once."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

UNSEEN = 1.6  # times what tensors hold: what operators hold within, and what allocators keep
LEAST = 100 * 10**6  # bytes of any computation: code that is loaded when it is first used


def counted(compute: Callable[[], object]) -> int:
    """The most bytes of tensors that live at once while this is computed, on the meta device too.

    There nothing is allocated and nothing computed, and the shapes are those of the real thing.
    """
    with TensorBytes() as count:
        compute()
    return count.peak


class TensorBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that live at once while it is on.

    Tensors that were there before are not counted, nor is what an operator holds within itself.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would import its compiler, which takes seconds, only to be kept away."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.whole = 0  # bytes of all tensors that were made, alive or not
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in before:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.whole += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Storages of dense tensors; others, such as sparse matrices of a graph, are small."""
    tensors = (t for t in tree_leaves(values) if isinstance(t, torch.Tensor))
    return [t.untyped_storage() for t in tensors if t.layout is torch.strided]
