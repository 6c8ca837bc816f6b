"""Which draws of a program are taken for noise that it shows, and which are others."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.other_draws import other_draws
from dpaudit.capture.runs import MessageId
from dpaudit.capture.unnamed_noise import drawn_beside, masks_beside
from dpaudit.files.recorded import RecordedBatch, RecordedDraw

MESSAGE = MessageId(0, (1,), "x", 1)
COIN = "coin.py:3 draws numbers that are not shown as noise"
UNSEEN = 'numbers of "noise" were not seen when they were drawn'


def draw(
    operator: str, n: int, site: str = "a.py:1", purpose: Any = None, of: tuple[Any, ...] = ()
) -> dict[str, Any]:
    about = {"operator": operator, "call_site": site, "purpose": purpose, "parameters": of}
    return {"shape": () if n == 1 else (n,), **about}


NORMAL = draw("numpy.normal", 5)
NOISE = draw("gaussian", 5, "noise")
EXPONENTIAL, LAPLACE = draw("numpy.exponential", 5), draw("laplace", 5, "noise")
COIN_DRAW = draw("random.uniform", 1, "coin.py:3")
BATCH = None


def of(
    *events: Any,
    sites: tuple[str, ...] = (),
    process: int = 0,
    check: Callable[[Any, tuple[str, ...]], str] = other_draws,
    as_bytes: tuple[MessageId, ...] = (),
) -> str:
    """What is said of draws and batches in this order."""
    taken, draws = [], []
    for sequence, event in enumerate(events):
        at = {"process": process, "sequence": sequence}
        if event is BATCH:
            taken.append(RecordedBatch(agent=0, number=len(taken) + 1, records=3, **at))
        else:
            about = {"rank": 0, "time": 0.0, "occurrence": 0, "round": None, "dtype": "float64"}
            draws.append(RecordedDraw(**about, **at, **event))
    run: Any = SimpleNamespace(taken=taken, all_draws=draws)
    run.span, run.messages = lambda agent, k: (-1, len(events)), {MESSAGE: np.zeros(2)}
    run.id_of, run.as_bytes = {}, as_bytes
    return check(run, sites)


START = draw("numpy.normal", 30, "data.py:1")
ROUND = (BATCH, NORMAL, NOISE)


@pytest.mark.parametrize(
    "events",
    [
        (START, *ROUND, *ROUND),
        (START, COIN_DRAW, *ROUND),  # before the first batch: of data, a model or a graph
        (START, draw("numpy.normal", 10), BATCH, NOISE, BATCH, NOISE),  # drawn in advance
        (START, NORMAL, NOISE, *ROUND),  # before the batch that it hides
        (BATCH, draw("numpy.normal", 10), NOISE, NOISE),  # of two agents at once
        (BATCH, draw("normal_", 2), draw("normal_", 3), NOISE),  # by layers
        (BATCH, *[draw("random.normal", 1)] * 5, NOISE),
        (BATCH, draw("normal.Tensor_float", 5), NOISE),
        (BATCH, draw("uniform_", 5), NOISE),  # by quantiles
        (BATCH, draw("os.urandom", 5), NOISE),
        (BATCH, EXPONENTIAL, LAPLACE),  # with a sign
        (BATCH, EXPONENTIAL, EXPONENTIAL, LAPLACE),  # the difference of two
        (BATCH, *[EXPONENTIAL] * 4, LAPLACE, LAPLACE),
        (BATCH, EXPONENTIAL, EXPONENTIAL, LAPLACE, LAPLACE),
        (BATCH, *[draw("random.exponential", 1)] * 10, LAPLACE, *ROUND),
        (BATCH, draw("numpy.permutation", 40), NORMAL, NOISE),
        (BATCH, draw("numpy.choice", 8), NORMAL, NOISE),
        (BATCH, draw("bernoulli_", 90, purpose="model"), NORMAL, NOISE),
        (BATCH, draw("random_", 1, purpose="data"), NORMAL, NOISE),
    ],
)
def test_what_is_shown_as_noise_is_all_that_is_drawn(events: Any) -> None:
    assert of(*events) == ""


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((*ROUND, BATCH, COIN_DRAW, NORMAL, NOISE), COIN),
        ((*ROUND, BATCH, NORMAL, NOISE, COIN_DRAW), COIN),
        ((BATCH, NORMAL, COIN_DRAW, NOISE), "a.py:1 draws numbers that are not shown"),
        ((BATCH, draw("numpy.choice", 1, "coin.py:3"), NORMAL, NOISE), COIN),
        ((draw("numpy.normal", 10), BATCH, COIN_DRAW, NOISE, BATCH, NOISE), "a.py:1 draws"),
        ((BATCH, NOISE), f"5 {UNSEEN}"),
        ((BATCH, COIN_DRAW, EXPONENTIAL, EXPONENTIAL, LAPLACE), COIN),
        ((BATCH, EXPONENTIAL, draw("numpy.exponential", 4), LAPLACE), "a.py:1 draws"),
        ((BATCH, EXPONENTIAL, EXPONENTIAL, NOISE), "a.py:1 draws"),
        ((draw("numpy.normal", 3), BATCH, NOISE), f"2 {UNSEEN}"),
        ((BATCH, draw("numpy.standard_t", 5), NOISE), "a.py:1 draws it by numpy.standard_t"),
        ((BATCH, draw("cauchy_", 3), NORMAL, draw("laplace", 8, "z")), '"z" is noise of another'),
    ],
)
def test_a_number_beside_the_noise_is_named(events: Any, said: str) -> None:
    assert said in of(*events)


def test_a_line_of_noise_needs_no_other_draw() -> None:
    line = draw("gaussian", 5, "train.py:8")
    assert of(BATCH, line, BATCH, line, sites=("train.py:8",)) == ""
    assert COIN in of(BATCH, line, COIN_DRAW, BATCH, line, sites=("train.py:8",), process=2)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((BATCH, draw("numpy.gumbel", 2)), "a.py:1 draws numbers that are not shown as noise"),
        ((BATCH, NOISE, draw("numpy.gumbel", 2)), "a.py:1 draws numbers"),  # noise was not seen
        ((BATCH, NORMAL, NOISE, COIN_DRAW, COIN_DRAW), COIN),
        ((BATCH, NORMAL, NOISE, COIN_DRAW), ""),  # one number does not hide two
        (ROUND, ""),
        ((START, BATCH), ""),  # the batch is made of what is drawn before
        ((BATCH, draw("bernoulli_", 90, purpose="model")), ""),
    ],
)
def test_what_is_drawn_before_a_message_may_hide_it(events: Any, said: str) -> None:
    check: Any = partial(drawn_beside, message=MESSAGE)
    assert said in of(*events, check=check)
    assert bool(of(*events, check=check)) == bool(said)


@pytest.mark.parametrize(
    ("drawn", "hides"),
    [(COIN_DRAW, True), (draw("random.integers", 1, of=(0, 9)), False), (NOISE, False)],
)
def test_one_number_may_hide_bytes_of_any_length(drawn: Any, hides: bool) -> None:
    """As of a text that spells it; a whole number chooses a peer."""
    check: Any = partial(drawn_beside, message=MESSAGE)
    before = (BATCH, NORMAL) if drawn is NOISE else (BATCH,)
    assert bool(of(*before, drawn, check=check, as_bytes=(MESSAGE,))) is hides


@pytest.mark.parametrize(
    ("operator", "of_seed", "of_peer"),
    [
        ("numpy.integers", (0.0, 1e6), (0.0, 1e6 - 1)),
        ("numpy.integers", (2.0**31, None), (8.0, None)),
        ("random.integers", (-5e5, 5e5), (7.0, 9.0)),
        ("random.bits", (128.0,), (19.0,)),
        ("random_", (-(2.0**63), 2.0**63), (4.0,)),  # as torch.compile seeds what it draws
    ],
)
def test_a_seed_may_hide_any_number_of_numbers(operator: str, of_seed: Any, of_peer: Any) -> None:
    check: Any = partial(drawn_beside, message=MESSAGE)
    seed, peer = (draw(operator, 1, "coin.py:3", of=given) for given in (of_seed, of_peer))
    assert of(BATCH, NORMAL, NOISE, seed, check=check).startswith("coin.py:3 draws numbers that")
    assert of(BATCH, NORMAL, NOISE, peer, check=check) == ""


@pytest.mark.parametrize("operator", ["random.bytes", "os.urandom", "random_"])
def test_bytes_and_unbounded_integers_may_be_a_seed(operator: str) -> None:
    check: Any = partial(drawn_beside, message=MESSAGE)
    assert of(BATCH, draw(operator, 1), check=check) != ""


DRAWN = draw("numpy.uniform", 4, "coin.py:3")  # for four records, of which three are taken


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((*ROUND, DRAWN, *ROUND), ""),
        ((*ROUND, DRAWN, DRAWN, *ROUND), ""),  # in two parts, or another agent's beside it
        ((*ROUND, COIN_DRAW, *ROUND), COIN),
        ((*ROUND, draw("numpy.uniform", 3, "coin.py:3"), *ROUND), COIN),
        ((BATCH, DRAWN, NORMAL, NOISE), COIN),
        ((*ROUND, DRAWN, NORMAL, NOISE), COIN),
    ],
)
def test_numbers_directly_before_a_batch_draw_it(events: tuple[Any, ...], said: str) -> None:
    sampled = partial(other_draws, sampled=True)
    found = of(*events, check=sampled)
    assert found.startswith(said) if said else not found
    assert of(*events).startswith(COIN)


MASK = draw("numpy.normal", 4, "mask.py:1")
SAID = "mask.py:1 draws numbers that are not shown as noise"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((BATCH, MASK, NORMAL, NOISE), SAID),
        ((BATCH, NORMAL, NOISE, MASK), SAID),
        ((BATCH, MASK, BATCH, NORMAL, NOISE), SAID),  # of another agent, for both
        ((BATCH, *[draw("random.gauss", 1, "mask.py:1")] * 4, NORMAL, NOISE), SAID),
        ((BATCH, draw("numpy.integers", 4, "mask.py:1", of=(0.0, 2.0**32)), NORMAL, NOISE), SAID),
        ((MASK, BATCH, NORMAL, NOISE), ""),  # weights, before all batches
        ((BATCH, NORMAL, NOISE, MASK, BATCH), SAID),
        ((BATCH, NORMAL, NOISE, draw("numpy.uniform", 4), BATCH), ""),  # draws the records
        ((BATCH, NORMAL, NOISE, {**MASK, "shape": (3, 2)}, BATCH), ""),  # makes the records
        ((BATCH, draw("numpy.normal", 3), NORMAL, NOISE), ""),  # too few
        ((BATCH, draw("numpy.integers", 4, of=(0.0, 60.0)), NORMAL, NOISE), ""),
        ((BATCH, draw("numpy.integers", 1, of=(0.0, 2.0**32)), NORMAL, NOISE), ""),
        ((BATCH, draw("numpy.permutation", 9), draw("random.choice", 9), NORMAL, NOISE), ""),
        ((BATCH, draw("torch.rand", 9, purpose="model"), NORMAL, NOISE), ""),
    ],
)
def test_masks_that_nobody_shows_may_hide_a_message(events: Any, said: str) -> None:
    """Beside noise that is shown, and so in a message that does not move without noise."""
    check: Any = partial(masks_beside, message=MESSAGE, n_numbers=4)
    assert said in of(*events, check=check)
    assert bool(of(*events, check=check)) == bool(said)
