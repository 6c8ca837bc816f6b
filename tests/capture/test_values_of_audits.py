"""A whole audit of a program of known figures, and the runs that measure its rounds."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.capture import audit, record_shift, worlds
from dpaudit.capture.audit import run_captured
from dpaudit.capture.record_shift import NO_LEAK, NotMeasured, RoundLeak
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.capture.worlds import MeasuredRuns, NeighbouringRuns, measured_worlds
from dpaudit.errors import RunError
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict

from .toy import CLIP, SCALE, Toy, config_of

MU = CLIP / SCALE
EVERYONE = ThreatModel(name="every link")
CLAIMS = (
    {"text": "the run", "mu": 1.0},
    {"text": "a round", "mu": 0.2, "scope": "round"},
    {"text": "of another", "mu": 2.0, "scope": "round", "threat_model": "agent 0"},
)
MODELS = ({"name": "every link"}, {"name": "agent 0", "kind": "curious", "agents": (0,)})


def audited(monkeypatch: pytest.MonkeyPatch, folder: Path, toy: Any = Toy, **of: Any) -> Any:
    """The result, and what was told of the progress."""
    (folder / "program").mkdir()
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(audit, "Program", lambda config, scratch, cores: toy(scratch))

    def kept(program: Any, run: Any, on_run: Any) -> Any:
        on_run()
        return program

    monkeypatch.setattr(audit, "KeptRuns", kept)
    config = config_of(folder / "program", **of)
    result = run_captured(
        config, folder / "out", 1, on_progress=lambda *progress: told.append(progress)
    )
    return result, told


def of_role(result: AuditResult, role: Role) -> list[Finding]:
    return [finding for finding in result.findings if finding.role is role]


def test_a_toy_is_audited_by_its_runs(monkeypatch, tmp_path: Path) -> None:
    """Without premises, which need more runs: a record moves a round by 0.5 of its noise."""
    monkeypatch.setattr(audit.PremiseExamination, "examine", lambda self, asked, decided: None)
    result, told = audited(monkeypatch, tmp_path, claim=CLAIMS, threat_model=MODELS)
    assert [one.verdict for one in result.claims] == [
        *[Verdict.UNDERPOWERED] * 2, *[Verdict.UNSUPPORTED] * 2, Verdict.UNDERPOWERED,
    ]  # fmt: skip
    found = of_role(result, Role.MEASURED)
    assert [(f.claim, f.threat_model) for f in found] == [
        (0, "every link"), (0, "agent 0"), (1, "every link"), (1, "agent 0"), (2, "agent 0"),
    ]  # fmt: skip
    for finding in found:
        assert finding.metrics[Name.LARGEST_MU_OF_A_ROUND].value == pytest.approx(MU)
        assert finding.metrics[Name.EPSILON].low == pytest.approx(
            gaussian_epsilon(1e-5, MU), rel=3e-3
        )
        assert finding.metrics[Name.EPSILON].high == inf
    assert [bool(f.verdict) for f in found] == [False, False, True, True, False]
    assert result.graph.links == ((0, 1), (1, 0))
    assert [f.role for f in result.findings].count(Role.NOISE) == 1
    for what in ("worlds", "alignments", "short runs", "the report"):
        assert (what, 0, 0) in told
    assert result.notes == (audit.NOTE.text,)
    assert result.note_codes == ("DPA129",)
    assert result.provenance.data == "the program's own data"
    assert "It is assumed" not in result.claims[0].reason
    assert "knows which batches hold the record" in result.claims[0].reason
    assert "knows that the record is in the batch" in result.claims[2].reason
    assert 0 < result.timing["runs"] < 60
    assert ("worlds", 1, 3 + 3 + 2) in told


def test_what_was_left_out_of_an_audit_is_noted(monkeypatch, tmp_path: Path) -> None:
    class Odd(Toy):
        """Messages of both agents are not linear in their noise; others are ignored."""

        def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return np.sign(total + noise)

        def play(self, world: Any) -> Any:
            run = super().play(world)
            run.left_out = ["one message went elsewhere"]
            return run

    result, _ = audited(
        monkeypatch, tmp_path, Odd, claim=CLAIMS[:1], messages={"ignore": ("y", "w")}
    )
    ignored, unmeasured, left_out = result.notes[1:]
    assert ignored == audit.IGNORED.format("y, w")
    assert unmeasured.startswith('"x" of round 1 from agent 0 to 1 is not linear in noise "z"')
    assert (
        f"Short runs alone test such messages. To have them measured: {record_shift.CLIPPED}"
        in unmeasured
    )
    assert left_out == "one message went elsewhere"
    assert result.note_codes == ("DPA129", *["DPA130"] * 3)
    assert Name.LARGEST_MU_OF_A_ROUND not in of_role(result, Role.MEASURED)[0].metrics


class Bare(Toy):
    """Without noise in the first round."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return total + noise if k > 1 else total


@pytest.mark.parametrize("noiseless", [True, False])
def test_a_round_that_is_not_measured_is_noted(monkeypatch, tmp_path: Path, noiseless) -> None:
    """Where one before shows a record without noise; otherwise it is an error."""
    own = worlds._neighbours

    def of_one_round(*given: Any) -> Any:
        if given[-1] == 2:
            raise RunError("DPA063", "not linear")
        return own(*given)

    monkeypatch.setattr(worlds, "_neighbours", of_one_round)
    toy: Any = Bare(tmp_path) if noiseless else Toy(tmp_path)
    config = config_of(tmp_path, record={"rounds": (1, 2)})
    if not noiseless:
        with pytest.raises(RunError, match="not linear"):
            measured_worlds(config, toy)
        return
    found = measured_worlds(config, toy)
    assert found.not_measured == "round 2 was not measured: not linear"
    assert [*found.rounds] == [1]
    unread = ThreatModel(name="agent 5", kind="curious", agents=(5,))
    assert worlds._shows_without_noise(found.rounds[1], [unread, EVERYONE])
    assert not worlds._shows_without_noise(found.rounds[1], [unread])
    monkeypatch.setattr(NeighbouringRuns, "leak", lambda *_: RoundLeak(inf, inf, "m", upper=True))  # type: ignore[arg-type]
    assert not worlds._shows_without_noise(found.rounds[1], [EVERYONE])


def test_rounds_after_one_that_was_not_linear_hide_noise(monkeypatch, tmp_path: Path) -> None:
    class Odd(Toy):
        def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return np.sign(total + noise) if (agent, k) == (1, 1) else total + noise

    config = config_of(tmp_path, record={"rounds": (1, 2)})
    found = measured_worlds(config, Odd(tmp_path))  # type: ignore[arg-type]
    message = MessageId(1, (0,), "x", 1)
    assert [*found.unmeasured] == [message]
    assert isinstance(found.unmeasured[message], NotMeasured)
    first, second = found.rounds.values()
    assert (tuple(first.hidden_before), tuple(second.hidden_before)) == ((), (0, 1))
    pair: Any = ("absent", "present")
    assert not first.leak(0, EVERYONE, pair).upper
    assert second.leak(0, EVERYONE, pair).upper
    assert first.leak(1, EVERYONE, pair).mu == 0.0
    assert second.leak(1, EVERYONE, pair).mu == pytest.approx(1.0 / SCALE)


class Sleeps(Toy):
    """Nobody takes part in the second round of four, and agent 1 in the last two alone."""

    rounds = 4

    def acting(self, k: int) -> Sequence[int]:
        return {1: (0,), 2: ()}.get(k, (0, 1))


def test_victims_that_take_no_part_have_no_place(tmp_path: Path) -> None:
    toy: Any = Sleeps(tmp_path)
    found = measured_worlds(config_of(tmp_path, record={"rounds": (1, 2, 3)}), toy)
    first, second, third = found.rounds.values()
    assert [[*n.places] for n in (first, second, third)] == [[0], [], [0, 1]]
    assert (second.noised, second.base) == ({}, found.base)
    assert second.runs == {
        v: dict.fromkeys(("present", "absent", "scaled"), found.base) for v in (0, 1)
    }
    pair: Any = ("absent", "present")
    assert second.leak(0, EVERYONE, pair) == first.leak(1, EVERYONE, pair) == NO_LEAK
    assert first.leak(0, EVERYONE, pair).mu == pytest.approx(0.5 / SCALE)
    away = ThreatModel(name="agent 5", kind="curious", agents=(5,))
    assert first.leak(0, away, pair) == NO_LEAK
    with pytest.raises(
        RunError, match="agent 1 sends nothing in round 1 of 4; it takes a batch and"
    ):
        measured_worlds(config_of(tmp_path, record={"rounds": (1, 2)}), toy)


def test_an_only_batch_is_of_one_round(tmp_path: Path) -> None:
    class Once(Toy):
        """Agent 0 takes its only batch before the first round."""

        def _turn(self, run: Any, clock: Any, agent: int, k: int, *noise: Any) -> None:
            super()._turn(run, clock, agent, k, *noise)
            if k > 1:
                run.batches = [t for t in run.batches if t.agent or t.sequence < 6]

    toy: Any = Once(tmp_path)
    alone = measured_worlds(config_of(tmp_path, record={"victims": (0,)}), toy)
    assert [*alone.rounds[1].places] == [0]
    with pytest.raises(RunError, match="agent 0 takes no batch in round 2"):
        measured_worlds(config_of(tmp_path, record={"victims": (0,), "rounds": (1, 2)}), toy)


def test_a_part_of_a_draw_in_its_order_is_found_by_its_signs() -> None:
    """The first three of six numbers, of which two are so close that their values tell nothing."""
    draw = NamedDraw("k", "z", 0, 0, 2.0, "gaussian")
    message = MessageId(0, (1,), "x", 1)
    place = AgentRound(0, 1, (message,), (draw,), 1)
    values = np.array([1.0, 1.0, -2.0, 3.0, 0.5, 4.0])
    signs = np.array([[1, 1, -1, 1, -1, -1], [1, -1, -1, -1, -1, 1]])

    def run(noise: np.ndarray) -> Any:
        return SimpleNamespace(
            messages={message: 7.0 + noise[:3]}, tape={"k": noise}, as_bytes=frozenset()
        )

    base, silent = run(values), run(0 * values)
    one, two = (run(draw.scale * s) for s in signs)
    found = record_shift._response(place, message, 0, base, silent, one, two)
    assert found is not None
    assert found.number.tolist() == [0, 1, 2]
    assert found.size == pytest.approx([2.0] * 3)


def test_what_is_measured_of_messages_is_by_message() -> None:
    errors = [NotMeasured("DPA063", str(i)) for i in range(3)]
    messages = [MessageId(i, (1,), "x", 1) for i in range(3)]
    rounds: Any = {
        1: SimpleNamespace(unmeasured={0: {messages[0]: errors[0]}, 1: {}}),
        2: SimpleNamespace(unmeasured={1: {messages[1]: errors[1], messages[2]: errors[2]}}),
    }
    nothing: Any = None
    found = MeasuredRuns(nothing, nothing, nothing, nothing, nothing, rounds)
    assert found.unmeasured == dict(zip(messages, errors, strict=True))
