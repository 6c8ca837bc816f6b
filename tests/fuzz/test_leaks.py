"""The exact leak lies between the ends of what is declared, in random settings of every defense."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.attack.contract import AttackContext
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Setting
from dpaudit.errors import DpauditError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.own_plugins import OWN
from tests.scratch import scratch_run

READERS = (
    ThreatModel(name="every link"),
    ThreatModel(name="agent 0", kind="curious", agents=(0,)),
    ThreatModel(name="agents 0 and 1", kind="colluding", agents=(0, 1)),
)
GRAPHS = ("ring", "complete", "directed-ring", "exponential", "star", "bipartite")
ROUNDING = 1e-3
BLOCKS, SETTINGS = 20, 20


def defense_of(name: str, chosen: random.Random) -> Any:
    made = load_plugin("defenses", name)
    options = {
        "n_rounds": chosen.choice([1, 2, 3, 5]),
        "batch_size": chosen.choice([1, 4, 8]),
        "allow_outside_theory": True,
    }
    if not made.cyclic:
        options["sampling"] = chosen.choice(["fixed", "poisson"])
    if "noise_multiplier" in made.model_fields:
        options["noise_multiplier"] = chosen.choice([0.7, 2.0, 5.0])
    elif made.model_fields.get("epsilon") is not None:
        options["epsilon"] = chosen.choice([0.5, 2.0, 8.0])
    return made(**options)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_leak_lies_between_what_is_declared(block: int) -> None:
    """What is outside a defense's theory and cannot be run at all is refused in a line."""
    attack, n_leaks = load_plugin("attacks", "likelihood-ratio")(trials=40), 0
    for seed in range(block * SETTINGS, (block + 1) * SETTINGS):
        chosen = random.Random(seed)
        name, n = chosen.choice(OWN), chosen.randint(3, 6)
        sizes = tuple(chosen.choice([8, 12, 20, 40]) for _ in range(n))
        reader, scope = chosen.choice(READERS), chosen.choice(["run", "run", "round", "message"])
        try:
            setting = Setting(build_graph(chosen.choice(GRAPHS), n), sizes, chosen.choice([1, 7]))
            defense = defense_of(name, chosen).calibrate(setting)
            record = chosen.choice(["add-remove", "replace-one"])
            adjacency = "function" if defense.function_distance() else record
            claim = Claim(text="ours", epsilon=1.0, delta=1e-5, scope=scope, adjacency=adjacency)
            declared = account_claim(claim, reader, defense, setting).epsilon
            context = AttackContext(None, setting, defense, (claim,), Streams(seed), scratch_run())  # type: ignore[arg-type]
            found = attack.measure(context, reader, lambda done, total: None)
        except (DpauditError, ValidationError):
            continue
        for leak in (f.metrics.get(Name.EPSILON) for f in found if f.role is Role.EXACT_LEAK):
            if leak is None:
                continue
            n_leaks += 1
            said = f"seed {seed}: {name}, {scope}, {reader.name}"
            assert leak.low <= declared.high * (1 + ROUNDING) + ROUNDING, said
            if scope != "message":
                assert leak.high >= declared.low * (1 - ROUNDING) - ROUNDING, said
    assert n_leaks > SETTINGS // 4
