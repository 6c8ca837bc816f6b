"""The batches that data loaders hand out, as a world of an audit wants them."""

from typing import Any

from torch.utils.data import dataloader

_ONE: Any = dataloader._SingleProcessDataLoaderIter
_SEVERAL: Any = dataloader._MultiProcessingDataLoaderIter
WORKERS = (
    "a DataLoader with {} workers: what they draw and take cannot be named; expected "
    "num_workers = 0 where a program is audited"
)


def hook(player: Any) -> None:
    """Show every batch to a player before the program has it; loaders with workers are refused."""
    own = _ONE._next_data

    def next_data(iterator: Any) -> Any:
        return player.loaded(own(iterator))

    def refused(iterator: Any, loader: Any) -> None:
        player.refuse(WORKERS.format(loader.num_workers))

    _ONE._next_data = next_data
    _SEVERAL.__init__ = refused
