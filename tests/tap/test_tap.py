"""The tap: nothing without an audit; in a world, draws by name and one record that differs."""

import io
import json
import os
import pickle
import runpy
import sys
import zlib
from collections import defaultdict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from dpaudit.capture.runs import (
    ProgramRun,
    RoundNumbers,
    draws_for,
    first_difference,
    place_of,
)
from dpaudit.capture.world_files import write_world
from dpaudit.files.captured_file import CapturedConfig, MessageOptions
from dpaudit.files.world import Change, World
from dpaudit.recorder import player as players
from dpaudit.recorder import tap
from dpaudit.recorder.batches import changed, digests_of, n_records
from dpaudit.recorder.errors import RecorderError
from dpaudit.recorder.log import Log
from dpaudit.recorder.player import WORLD, Player
from dpaudit.recorder.transports import encoders
from dpaudit.recorder.values import parts_of

GOSSIP = Path(__file__).parents[1] / "capture" / "programs" / "gossip.py"


def test_without_an_audit_it_hands_back_what_it_was_given() -> None:
    assert WORLD not in os.environ
    records, draw, value = (torch.ones(3), torch.ones(3)), np.ones(3), torch.zeros(2)
    assert tap.batch(0, records) is records
    assert tap.noise(0, "noise", draw, 1.0) is draw
    assert tap.send(0, [1, 2], "x", value) is value


def test_without_an_audit_the_tap_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the same text with the tap's calls replaced by what they hand back."""
    bare = GOSSIP.read_text().replace(
        "from dpaudit import tap\n",
        "class tap:\n"
        "    batch = staticmethod(lambda agent, records: records)\n"
        "    noise = staticmethod(lambda agent, name, draw, scale: draw)\n"
        "    send = staticmethod(lambda source, to, name, value: value)\n",
    )
    (tmp_path / "bare.py").write_text(bare)
    monkeypatch.setattr(sys, "argv", ["gossip.py"])
    said = []
    for path in (GOSSIP, tmp_path / "bare.py"):
        with torch.random.fork_rng():
            runpy.run_path(str(path), run_name="__main__")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def player(tmp_path: Path, **world: Any) -> Player:
    (tmp_path / "raw").mkdir(exist_ok=True)
    asked = players.World(str(write_world(World(out=tmp_path, **world))))
    return Player(Log(str(tmp_path / "raw"), 10**9), asked)


def left(tmp_path: Path) -> ProgramRun:
    """What a simulation has left in its folder."""
    config = CapturedConfig.model_validate({"program": {"command": ("python", "x.py")}})
    return ProgramRun(World(out=tmp_path), MessageOptions(), RoundNumbers(config))


def test_draws_are_replayed_silenced_or_put_at_their_scale(tmp_path: Path) -> None:
    own = torch.randn(5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(player(tmp_path).noise(2, "z", own, 3.0, "gaussian"), own)
    tape = left(tmp_path).write_tape(tmp_path / "tape")
    other = torch.full((5,), 9.0)

    def drawn(**world: Any) -> torch.Tensor:
        return player(tmp_path, tape=tape, **world).noise(2, "z", other, 3.0, "gaussian")

    assert torch.equal(drawn(), own)
    assert torch.equal(drawn(silent=("2/0/z",)), torch.zeros(5))
    twins = player(tmp_path, tape=tape, same={"2/1/z": ("2/0/z", -1)})
    assert torch.equal(twins.noise(2, "z", other, 3.0, "gaussian"), own)
    assert torch.equal(twins.noise(2, "z", other, 3.0, "gaussian"), -own)
    signs = [drawn(signs=("2/0/z",), sign_seed=i) for i in (0, 1, 2)]
    assert all(torch.equal(one.abs(), torch.full((5,), 3.0)) for one in signs)
    assert len({tuple(one.tolist()) for one in signs}) > 1
    fresh = [drawn(fresh={"2/0/z": "gaussian"}, noise_seed=i) for i in (1, 1, 2)]
    assert torch.equal(fresh[0], fresh[1])
    assert not torch.equal(fresh[0], fresh[2])


Layers = namedtuple("Layers", "weight bias")
SEVERAL = [
    [torch.ones(2, 3), torch.ones(2)],
    (np.ones(2), [np.float64(1.0), np.float64(1.0)]),
    {"weight": torch.ones(2), "bias": 1.0},
    defaultdict(list, {"weight": np.ones(2)}),
    Layers(torch.ones(2), torch.ones(1)),
]


@pytest.mark.parametrize("draw", SEVERAL, ids=lambda draw: type(draw).__name__)
def test_noise_of_several_layers_is_replayed_for_each(tmp_path: Path, draw: Any) -> None:
    """As a list that holds a tensor for each layer: each has a name of its own."""
    player(tmp_path).noise(2, "z", draw, 3.0, "gaussian")
    run = left(tmp_path)
    layers = dict(parts_of(draw))
    assert set(run.tape) == {f"2/0/z.{key}" for key in layers}
    silent = tuple(f"2/0/z.{key}" for key in layers)
    world = player(tmp_path, tape=run.write_tape(tmp_path / "tape"), silent=silent)
    found = world.noise(2, "z", draw, 3.0, "gaussian")
    assert type(found) is type(draw)
    for key, layer in parts_of(found):
        assert type(layer) is type(layers[key])
        assert not np.asarray(layer).any()
        assert np.asarray(layers[key]).all()  # the program's own is left as it is


@pytest.mark.parametrize(("family", "variance"), [("gaussian", 1.0), ("laplace", 2.0)])
def test_fresh_draws_have_the_law_that_is_stated(
    tmp_path: Path, family: Any, variance: float
) -> None:
    """20,000 draws of scale 3: a sample variance within 5% (6 standard errors or more)."""
    player(tmp_path).noise(0, "z", np.ones(20_000), 3.0, family)
    tape = left(tmp_path).write_tape(tmp_path / "tape")
    fresh = player(tmp_path, tape=tape, fresh={"0/0/z": family}, noise_seed=1)
    values = fresh.noise(0, "z", np.zeros(20_000), 3.0, family)
    assert isinstance(values, np.ndarray)
    assert abs(values.var() / (9 * variance) - 1) < 0.07


def test_a_draw_that_the_first_run_did_not_make_is_refused(tmp_path: Path) -> None:
    player(tmp_path).noise(0, "z", torch.zeros(5), 1.0, "gaussian")
    world = player(tmp_path, tape=left(tmp_path).write_tape(tmp_path / "tape"))
    with pytest.raises(RecorderError, match='draw 1 of "z" by agent 0 has another shape'):
        world.noise(0, "z", torch.zeros(4), 1.0, "gaussian")


def test_messages_and_draws_are_counted_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with the last message that its world asks for."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    seen = player(tmp_path, last={0: 2})
    for k in range(2):
        assert ended == []
        seen.batch(0, torch.zeros(4, 2))
        seen.noise(0, "z", torch.zeros(2), 0.5, "laplace")
        seen.send(0, (1, 2), "x", torch.full((2,), float(k)))
    assert ended == [0]
    run = left(tmp_path)
    sent = [(m.source, m.destinations, m.name, m.round) for m in run.messages]
    assert sent == [(0, (1, 2), "x", 1), (0, (1, 2), "x", 2)]
    assert [content.tolist() for content in run.messages.values()] == [[0, 0], [1, 1]]
    assert [(d.family, d.round, d.scale) for d in run.draws] == [
        ("laplace", 1, 0.5),
        ("laplace", 2, 0.5),
    ]
    assert [(b.agent, b.records, len(b.digests)) for b in run.batches] == [(0, 4, 4)] * 2
    assert [run.sent_until(k) for k in (1, 2)] == [{0: 1}, {0: 2}]
    [first, second] = run.messages
    assert [place_of(run, 0, k).batch for k in (1, 2)] == [1, 2]
    assert [[d.key for d in draws_for(run, k)] for k in (1, 2)] == [["0/0/z"], ["0/1/z"]]
    assert first_difference(run, run) is None
    assert run.known_before(second, "x")[0][1].tolist() == [0, 0]
    assert run.known_before(first, "x") == []


def test_only_the_record_of_the_named_batch_is_changed(tmp_path: Path) -> None:
    world = player(tmp_path, changes=(Change(agent=1, batch=2, how="absent"),))
    sizes = [len(world.batch(agent, torch.zeros(4, 2))) for agent in (0, 1, 0, 1, 1)]
    assert sizes == [4, 4, 4, 3, 4]


X, Y = torch.arange(6.0).reshape(3, 2) + 1, torch.tensor([1, 1, 0])


def test_a_record_is_changed_in_batches_of_every_form() -> None:
    x, y = changed((X, Y), "negated")
    assert torch.equal(x, torch.cat([-10 * X[:1], X[1:]]))
    assert torch.equal(y, Y)
    assert changed({"x": X, "y": Y}, "other-label")["y"].tolist() == [0, 1, 0]
    assert [len(part) for part in changed([X.numpy(), Y.numpy()], "absent")] == [2, 2]
    assert changed(X.numpy(), "zeroed")[0].tolist() == [0, 0]
    assert X[0].tolist() == [1, 2]  # the program's own are left as they are


@pytest.mark.parametrize("how", ["absent", "scaled", "level:5", "few:5:other-label", "zeroed"])
@pytest.mark.parametrize("i", [0, 2])
def test_a_record_in_lists_is_changed_as_one_in_arrays(how: str, i: int) -> None:
    lists = X.tolist(), Y.tolist()
    expected = changed((X, Y), how, i)
    assert changed(lists, how, i) == tuple(part.tolist() for part in expected)
    assert changed({"x": lists[0]}, how, i) == {"x": expected[0].tolist()}
    assert changed(lists[0], how, i) == expected[0].tolist()
    assert lists == (X.tolist(), Y.tolist())
    assert digests_of(lists) == digests_of((X.double(), Y))
    scalars = [list(row) for row in X.double().numpy()], list(Y.numpy())
    assert changed(scalars, how, i) == changed(lists, how, i)
    assert digests_of(scalars) == digests_of(lists)


@pytest.mark.parametrize("labels", [[1.0, -1.0], [[0.0], [1.0]]], ids=str)
@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_labels_of_floating_point_stay_labels_far_out(kind: Any, labels: list) -> None:
    """One that grew with its input would never be a wrong one: no loss would be large."""
    x, y = kind([[1.0, 2.0], [3.0, 4.0]]), kind(labels)

    def other(*batch: Any, how: str) -> list[Any]:
        return [torch.as_tensor(part)[0].tolist() for part in changed(batch, how)]

    other_input = [1e3, 2e3]
    assert other(x, y, how="own:1e3") == [other_input, labels[0]]
    assert other(x, y, how="own:1e3:other-label") == [other_input, labels[1]]
    assert other(x, y, how="other-label") == [[1.0, 2.0], labels[1]]
    times = kind([2.0, 3.0])
    assert other(x, times, how="own:1e3") == [other_input, 2e3]
    assert other(y, y, how="level:5") == 2 * [torch.as_tensor(labels)[0].mul(0).add(5).tolist()]


@pytest.mark.parametrize("batch", ["text", 3, (X, Y[:2]), X[:0], [1, 2], [[1.0], [1.0, 2.0]], [[]]])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises((RecorderError, TypeError), match=r"tap\.batch"):
        n_records(batch)


INTEGERS = [np.int64(2), np.array(2), torch.tensor(2), [np.int32(1), 2], np.arange(1, 3), range(3)]


@pytest.mark.parametrize("destinations", INTEGERS, ids=repr)
def test_agents_may_be_integers_of_numpy_and_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destinations: Any
) -> None:
    seen = player(tmp_path)
    monkeypatch.setattr(tap, "_player", lambda: seen)
    agent = np.int64(0)
    tap.batch(agent, np.ones((2, 2)))
    tap.noise(torch.tensor(0), "z", np.ones(2), np.float64(1))
    tap.send(agent, destinations, "x", np.ones(2))
    [message] = left(tmp_path).messages
    assert message.source == 0
    to = np.atleast_1d(np.asarray(destinations))
    assert message.destinations == tuple(int(one) for one in to if one)


@pytest.mark.parametrize("how", ["npy", "zlib", "json", "safetensors", "pickle"])
def test_bytes_that_hold_numbers_are_shown_as_their_numbers(tmp_path: Path, how: str) -> None:
    numbers, file = np.array([1.5, -2.0]), io.BytesIO()
    np.save(file, numbers)
    sent = {
        "npy": file.getvalue(),
        "zlib": zlib.compress(file.getvalue()),
        "json": json.dumps({"w": [1.5, -2.0]}).encode(),
        "safetensors": save({"w": numbers}),
        "pickle": pickle.dumps(SimpleNamespace(w=numbers)),
    }[how]
    if how == "pickle":
        encoders.keep(SimpleNamespace(w=numbers), sent)
    player(tmp_path).send(0, (1,), "x", sent)
    [content] = left(tmp_path).messages.values()
    assert content.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("destinations", [1.0, "1", -1, 2**31, None, [0, "1"], True], ids=repr)
def test_what_is_no_agent_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destinations: Any
) -> None:
    seen = player(tmp_path)
    monkeypatch.setattr(tap, "_player", lambda: seen)
    with pytest.raises(
        RecorderError, match=r"tap\.send: expected an agent's number, 0, 1, \.\.\.; got"
    ):
        tap.send(0, destinations, "x", np.ones(2))


@pytest.mark.parametrize(
    "scale", [-1.0, float("nan"), float("inf"), "a", None, np.ones(2)], ids=str
)
def test_what_is_no_scale_is_refused(tmp_path: Path, monkeypatch, scale: Any) -> None:
    seen = player(tmp_path)
    monkeypatch.setattr(tap, "_player", lambda: seen)
    with pytest.raises(RecorderError, match="expected one scale, 0 or more; got"):
        tap.noise(0, "z", np.ones(2), scale)


DRAWS = [np.ones(2), torch.ones(2), [0.0, 1.0], 1.0, [[0.0], np.ones(2)], {"a": [0.0, 1.0]}]


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_numbers_of_scale_0_are_0(tmp_path: Path, monkeypatch, draw: Any) -> None:
    """A program may turn its noise off, and may not state that it has none where it has some."""
    seen = player(tmp_path)
    monkeypatch.setattr(tap, "_player", lambda: seen)
    with pytest.raises(RecorderError, match="the scale is 0, and the numbers are not"):
        tap.noise(0, "z", draw, 0.0)
    nothing = [-0.0, 0.0] if isinstance(draw, (list, dict)) else -0.0 * draw
    tap.noise(0, "z", nothing, 0.0)
