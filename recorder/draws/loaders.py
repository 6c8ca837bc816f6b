"""The batches of torch's data loaders, shown to a player before the program has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

if TYPE_CHECKING:
    from ..player import Player

_ONE: Any = dataloader._SingleProcessDataLoaderIter
_SEVERAL: Any = dataloader._MultiProcessingDataLoaderIter
WORKERS = (
    "a DataLoader with {} workers: what they draw and take cannot be named; expected "
    "num_workers = 0 where a program is audited"
)


def hook_loaders(player: Player) -> None:
    """Loaders with workers are refused where a program is audited, and named where it is not."""
    own, own_start = _ONE._next_data, _SEVERAL.__init__

    def next_data(iterator: Any) -> Any:
        return player.loaded(own(iterator))

    def refused(iterator: Any, loader: Any) -> None:
        player.refuse_loader(WORKERS.format(loader.num_workers))
        own_start(iterator, loader)

    _ONE._next_data = next_data
    _SEVERAL.__init__ = refused
