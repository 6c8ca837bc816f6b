"""Benches of small audits on which canaries are played."""

from dataclasses import replace
from typing import Any

import pytest

from dpaudit.attack.contract import AttackContext
from dpaudit.data.datasets import Dataset
from dpaudit.files.claim import Claim
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

CLAIM = Claim(text="small", epsilon=0.5, delta=1e-5)


@pytest.fixture
def dataset(dataset: Dataset) -> Dataset:
    """In float32, as runs are."""
    return replace(dataset, x=dataset.x.float(), x_test=dataset.x_test.float())


@pytest.fixture
def context_of(setting_of):
    def make(
        name: str, claims: tuple[Claim, ...] = (CLAIM,), graph: str = "ring", **options: Any
    ) -> AttackContext:
        problem, setting = setting_of(graph, 4)
        defense = load_plugin("defenses", name)(batch_size=5, **options).calibrate(setting)
        return AttackContext(problem, setting, defense, claims, Streams(3), None)  # type: ignore[arg-type]

    return make
