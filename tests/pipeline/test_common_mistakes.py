"""What an audit says of the mistakes that docs/write-a-defense.md lists."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpaudit
from dpaudit.verify.verdict import check

B = 8


def stepped(x: Any, graph: Any, total: Any) -> tuple[Any, Any]:
    sent = x - 0.1 * total / B
    return graph.mix(sent), sent


def small_noise(self, x, k, graph, gradient, noise):  # type: ignore[no-untyped-def]
    total = gradient.clipped_sum(x, self.clip_norm)
    return stepped(x, graph, total + noise.gaussian("x", self.sigma * self.clip_norm / B, total))


def clipped_mean(self, x, k, graph, gradient, noise):  # type: ignore[no-untyped-def]
    mean = gradient(x)
    mean = mean * (self.clip_norm / mean.norm(dim=-1, keepdim=True)).clamp(max=1)
    drawn = noise.gaussian("x", self.sigma * self.clip_norm, mean)
    return stepped(x, graph, B * mean + drawn)


def no_clip(self, x, k, graph, gradient, noise):  # type: ignore[no-untyped-def]
    total = B * gradient(x)
    return stepped(x, graph, total + noise.gaussian("x", self.sigma * self.clip_norm, total))


def late_noise(self, x, k, graph, gradient, noise):  # type: ignore[no-untyped-def]
    total = gradient.clipped_sum(x, self.clip_norm)
    after, sent = stepped(x, graph, total)
    return after + noise.gaussian("x", 0.1 * self.sigma * self.clip_norm / B, total), sent


def one_draw(self, x, k, graph, gradient, noise):  # type: ignore[no-untyped-def]
    total = gradient.clipped_sum(x, self.clip_norm)
    drawn = noise.gaussian("x", self.sigma * self.clip_norm, total)
    return stepped(x, graph, total + drawn[..., :1, :])


@pytest.mark.parametrize(
    ("step", "said", "remedy"),
    [
        (small_noise, f'"x" moves {B} times its stated bound', "Clip the gradient of each"),
        (clipped_mean, f'"x" moves {2 * B} times its stated bound', "Clip the gradient of each"),
        (
            no_clip,
            r'"x" moves \d+,\d{3},\d{3}(,\d{3})* times its stated bound',
            "Clip the gradient of each",
        ),
        (late_noise, '"x" shows the record with no noise at all', ""),
        (one_draw, r'"x" of agent \d and "x" of agent \d carry the same noise', "Draw fresh noise"),
    ],
)
def test_a_common_mistake_is_named(
    step: Callable[..., Any], said: str, remedy: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    records = rng.random((400, 9), dtype="f4"), np.arange(400) % 3
    result = dpaudit.audit(
        step, records, model="logistic", n_agents=4, graph="ring", n_rounds=3, batch_size=B,
        clip_norm=1.0, noise_multiplier=1.0, claim={"epsilon": 10.0, "delta": 1e-5}, seed=3,
        out=tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 1
    content = json.loads(result.to_json())
    [checked] = check(content, tmp_path / "run")
    bare = step is late_noise  # no releases and no matrices are written of its leak
    assert checked.answer == ("not checkable" if bare else "confirmed")
    [claim] = result.claims
    assert re.search(said, claim.reason + claim.examination)
    assert claim.remedy.startswith(remedy)
    assert bool(claim.remedy) == bool(remedy)
