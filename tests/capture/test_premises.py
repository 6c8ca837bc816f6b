"""The premises of captured programs: right ones are supported, and no faulty one is."""

import os
import shutil
from math import inf, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.capture import worlds
from dpaudit.capture.audit import run_captured
from dpaudit.capture.extreme_records import refuse_unbounded
from dpaudit.capture.file_times import files_below
from dpaudit.capture.noise_tests import drawn_noise, runs_needed
from dpaudit.capture.record_changes import RecordMoves
from dpaudit.capture.runs import NamedDraw
from dpaudit.capture.visible_output import (
    NotExamined,
    Ordered,
    VisibleOutput,
    are_alike,
    in_short,
    printed,
)
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.files.world import FAR
from dpaudit.verify.verdict import check

PROGRAMS = Path(__file__).parent / "programs"
ROUNDS, GENEROUS = 2, 30.0
CLAIMS: tuple[dict[str, Any], ...] = (
    {"text": "the run", "mu": sqrt(ROUNDS)},
    {"text": "a round", "mu": 1.0, "scope": "round"},
    {"text": "in place of another", "mu": 2.0, "scope": "round", "adjacency": "replace-one"},
    {"text": "far more", "mu": GENEROUS},
)


def audited(
    out: Path, variant: str, claims: tuple[dict[str, Any], ...] = CLAIMS, **record: Any
) -> AuditResult:
    victims = (0, 1, 2) if variant in ("order", "count") else (0, 1)
    record = {"victims": victims, "candidates": ("present", "negated"), **record}
    folder = out.with_name(f"{out.name}-program")  # of its own: one of the faults writes there
    folder.mkdir()
    shutil.copy(PROGRAMS / "premises.py", folder)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "premises.py", *variant.split()), "folder": folder},
            "record": record,
            "certify": {"runs": 0},
            "claim": claims,
        }
    )
    return run_captured(config, out, cores=1)


def test_a_right_program_is_supported(tmp_path: Path) -> None:
    """With its assumptions, and with a range that ends in what was measured at most."""
    result = audited(tmp_path, "none", CLAIMS[:3])
    for claim, mu in zip(result.claims, (sqrt(ROUNDS), 1.0, 2.0), strict=True):
        assert claim.verdict is Verdict.SUPPORTED
        assert [premise.status for premise in claim.premises] == ["examined"] * 6
        assert "It is assumed that records act only as" in claim.reason
        assert claim.range is not None
        assert claim.range.accounted == pytest.approx(gaussian_epsilon(1e-5, mu), rel=1e-4)
        assert claim.range.accounted < claim.range.measured < 1.1 * claim.range.accounted
    content = result.model_dump(mode="json")
    assert [one.answer for one in check(content, tmp_path)] == ["confirmed"] * 3
    [noise] = [f for f in content["findings"] if f["role"] == "noise"]
    noise["not_examined"] = ["how large it is"]
    assert [one.answer for one in check(content, tmp_path)] == ["contradicted"] * 3


def test_an_agent_that_is_no_victim_prevents_support(tmp_path: Path) -> None:
    [claim] = audited(tmp_path, "none", CLAIMS[3:], victims=(0,)).claims
    assert claim.verdict is Verdict.UNDERPOWERED
    assert "no record of agent 1 was changed (record.victims)" in claim.reason
    assert claim.range is not None
    assert claim.range.measured == inf


RIGHT = (
    *("momentum", "decay", "halves", "two-draws", "header", "printed-round", "printed-time"),
    *("layers", "numbers", "some-in-another-order"),
    *("own-order", "pickled", "json", "in-turn", "louder", "clip-of-message-before"),
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", RIGHT)
def test_an_odd_but_right_program_is_supported(tmp_path: Path, variant: str) -> None:
    result = audited(tmp_path, variant, CLAIMS[:2])
    assert [claim.verdict for claim in result.claims] == [Verdict.SUPPORTED] * 2, result.sentence
    answers = [one.answer for one in check(result.model_dump(mode="json"), tmp_path)]
    assert answers == ["confirmed"] * 2


@pytest.mark.slow
def test_records_whose_messages_are_no_numbers_are_assumed_away(tmp_path: Path) -> None:
    result = audited(tmp_path, "no-number-far-out", CLAIMS[:1])
    [claim] = result.claims
    assert claim.verdict is Verdict.SUPPORTED
    assert check(result.model_dump(mode="json"), tmp_path)[0].answer == "confirmed"
    assert "no record is so large that its messages are no finite numbers" in claim.reason
    [found] = [f for f in result.findings if f.role is Role.ALIGNMENT]
    assert "inputs 1e22 times as large give no finite numbers" in found.notes[0]


@pytest.mark.slow
def test_laplace_noise_is_supported_at_pure_epsilon(tmp_path: Path) -> None:
    claims = (
        {"text": "the run", "epsilon": ROUNDS * 1.0},
        {"text": "less", "epsilon": ROUNDS * 0.99},
    )
    at, below = audited(tmp_path, "laplace", claims).claims
    assert (at.verdict, below.verdict) == (Verdict.SUPPORTED, Verdict.UNSUPPORTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "low", "verdict"),
    [
        ("laplace", 1.0, Verdict.SUPPORTED),
        ("laplace-of-l2", sqrt(60), Verdict.UNSUPPORTED),
    ],
)
def test_two_far_records_show_a_clip_of_another_norm(
    tmp_path: Path, variant: str, low: float, verdict: Verdict
) -> None:
    """Alone, one moves the sum by CLIP in L1, or in L2 and by sqrt(INPUTS) as much in L1."""
    claims = ({"text": "a", "epsilon": 2.0, "scope": "round", "adjacency": "replace-one"},)
    result = audited(tmp_path, variant, claims)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert 0.998 * low < measured.metrics[Name.EPSILON].low < 1.001 * 2 * low
    assert result.verdict is verdict


@pytest.mark.slow
def test_a_record_counts_once_in_each_pass_over_the_data(tmp_path: Path) -> None:
    """Eight rounds are four passes: mu = 2, and not sqrt(8)."""
    claims = ({"text": "four passes", "mu": 2.0}, {"text": "less", "mu": 1.99})
    at, below = audited(tmp_path, "epochs", claims).claims
    assert (at.verdict, below.verdict) == (Verdict.SUPPORTED, Verdict.UNSUPPORTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "verdict"),
    [("unnamed", Verdict.UNDERPOWERED), ("no-noise", Verdict.UNSUPPORTED)],
)
def test_noise_that_nobody_named_is_no_fault(
    tmp_path: Path, variant: str, verdict: Verdict
) -> None:
    result = audited(tmp_path, variant)
    assert {claim.verdict for claim in result.claims} == {verdict}
    named = "premises.py:" in result.claims[0].reason
    assert named == (variant == "unnamed"), result.claims[0].reason


@pytest.mark.slow
def test_a_later_round_does_not_hide_what_the_first_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where receivers add the noise, and gradients of round 2 are not linear in it."""
    own = worlds._neighbours

    def of_one_round(*given: Any) -> Any:
        if given[-1] == 2:
            raise RunError("DPA063", "not linear")
        return own(*given)

    monkeypatch.setattr(worlds, "_neighbours", of_one_round)
    result = audited(tmp_path / "clean", "no-noise", rounds=(1, 2))
    assert {claim.verdict for claim in result.claims} == {Verdict.UNSUPPORTED}
    assert "round 2 was not measured: not linear" in result.notes
    with pytest.raises(RunError, match="not linear"):
        audited(tmp_path / "right", "none", rounds=(1, 2))


FAULTS = {
    "clip-of-batch": "distance",
    "no-clip-far-out": "distance",
    "no-clip-of-infinite": "distance",
    "no-clip-in-single": "distance",
    "no-clip-of-label": "distance",
    "no-clip-of-agent": "distance",
    "no-clip-at-last": "distance",
    "no-clip-of-last": "distance",
    "no-clip-of-layer": "distance",
    "no-clip-in-between": "distance",
    "clip-of-largest": "distance",
    "clip-of-median": "distance",
    "clip-of-median-above-0": "distance",
    "clip-of-norms-before": "state",
    "turned-to-descend": "distance",
    "stop-when-short": "distance",
    "half-when-broken": "distance",
    "used-twice": "composition",
    "divided-by-count": "distance",
    "normalised-by-batch": "distance",
    "low": "noise",
    "rounded": "noise",
    "low-in-a-round": "noise",
    "low-of-an-agent": "noise",
    "low-in-a-coordinate": "noise",
    "one-number": "noise",
    "uniform": "noise",
    "mirrored": "noise",
    "permuted-again": "noise",
    "of-one-length": "noise",
    "of-half-precision": "noise",
    "truncated": "noise",
    "same-in-rounds": "noise",
    "same-in-agents": "composition",
    "in-a-row": "noise",
    "one-seed": "noise",
    "scale-of-data": "completeness",
    "remembered": "state",
    "mean-of-round-before": "composition",
    "kept-weight": "distance",
    "whole-numbers": "distance",  # of which none is put far out
    "t-noise": "noise",
    "dropout": "distance",  # a right one, in which one record less changes all others
    "mean-of-unsent": "composition",
    "in-turn-unsent": "composition",
    "second-message": "composition",
    "loss-beside": "composition",
    "loss-of-all": "completeness",
    "first-message": "",  # refused: no batch is taken in round 1
    "printed-loss": "completeness",
    "warned-loss": "completeness",
    "loss-as-text": "completeness",
    "order": "completeness",
    "count": "distance",
    "file": "completeness",
    "cut-far-out": "noise",
    "dropped-far-out": "noise",
    "coin": "noise",
    "coin-of-normal": "noise",
    "coin-of-integers": "noise",
    "coin-of-python": "noise",
    "coin-of-secrets": "noise",
    "coin-of-system": "noise",
    "some-coordinates": "",  # refused, or nothing is examined: noise has numbers that it moves not
}


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "premise"), FAULTS.items())
def test_no_fault_is_supported(tmp_path: Path, variant: str, premise: str) -> None:
    """Not even a claim of mu = 30, which some of them keep."""
    try:
        result = audited(tmp_path, variant)
    except RunError:
        assert not premise
        return
    for claim in result.claims:
        assert claim.verdict is not Verdict.SUPPORTED
        missing = [one.name for one in claim.missing]
        assert premise in missing if premise else missing
        assert claim.range is None or claim.range.measured == inf
    content = result.model_dump(mode="json")
    assert {one.answer for one in check(content, tmp_path)} == {"confirmed"}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["low-and-rounded", "low-and-of-half-precision"])
def test_coarse_noise_that_is_too_small_is_accused(tmp_path: Path, variant: str) -> None:
    result = audited(tmp_path, variant, CLAIMS[:2])
    assert {claim.verdict for claim in result.claims} == {Verdict.UNSUPPORTED}
    assert "the size of" in result.claims[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["mean-of-round-before", "kept-weight", "remembered"])
def test_what_a_later_round_remembers_counts(tmp_path: Path, variant: str) -> None:
    """Of a run; a record of one round alone moves that round as far as is claimed."""
    run, one_round = audited(tmp_path, variant, CLAIMS[:2]).claims
    assert (run.verdict, one_round.verdict) == (Verdict.UNSUPPORTED, Verdict.UNDERPOWERED)


@pytest.mark.slow
def test_a_record_of_one_batch_is_seen_in_the_next_round(tmp_path: Path) -> None:
    """Each record is in every other batch."""
    [claim] = audited(tmp_path, "mean-in-epochs", CLAIMS[3:]).claims
    assert claim.verdict is Verdict.UNSUPPORTED
    assert "moves with the record, and no noise hides it" in claim.reason


@pytest.mark.slow
def test_dropout_of_other_records_accuses_nobody(tmp_path: Path) -> None:
    result = audited(tmp_path, "dropout")
    assert {claim.verdict for claim in result.claims} == {Verdict.UNDERPOWERED}
    assert "premises.py:" in result.claims[0].reason
    assert "draws other numbers beside noise" in result.claims[0].reason


class Run(NamedTuple):
    draws: list[NamedDraw]
    tape: dict[str, np.ndarray]


def runs(values: np.ndarray) -> list[Run]:
    """Draws [runs, agents, occurrences, numbers] of one line."""
    found = []
    for run in values:
        draws = [
            (NamedDraw(f"{i}/{k}/z", "z", i, k, 1.0, "gaussian"), numbers)
            for i, agent in enumerate(run)
            for k, numbers in enumerate(agent)
        ]
        found.append(Run([d for d, _ in draws], {d.key: numbers for d, numbers in draws}))
    return found


def noise(seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((10, 2, 5, 40))


def test_noise_of_several_runs_has_an_interval() -> None:
    """Right noise fails with probability 1e-6, or is outside of it with 5%; the seed is fixed."""
    [found] = drawn_noise(runs(noise()), ())
    size = found.metrics[Name.NOISE_OVER_DECLARED]
    assert found.verdict is None
    assert not found.not_examined
    assert size.n == 10 * 5 * 40
    assert 0.95 < size.ends[0] < 1 < size.ends[1] < 1.05


@pytest.mark.parametrize(
    ("said", "where", "factor"),
    [
        ("an agent's noise", np.s_[:, 1], 0.85),
        ("a round's noise", np.s_[:, :, 3], 0.8),
        ("a coordinate", np.s_[..., 7], 0.4),
    ],
)
def test_less_noise_in_one_part_is_found(said: str, where: Any, factor: float) -> None:
    values = noise()
    values[where] *= factor
    [found] = drawn_noise(runs(values), ())
    assert found.verdict is Verdict.UNSUPPORTED
    assert f"the size of {said}" in found.title


def test_noise_that_depends_on_noise_before_it_is_found() -> None:
    values = noise()
    values[:, :, 1:] = 0.8 * values[:, :, 1:] + 0.6 * values[:, :, :-1]
    [found] = drawn_noise(runs(values), ())
    assert found.verdict is Verdict.UNSUPPORTED


def test_noise_that_other_seeds_do_not_change_is_not_examined() -> None:
    values = noise()
    values[1:] = values[0]
    [found] = drawn_noise(runs(values), ())
    assert "the same in runs with other seeds" in found.not_examined[0]


@pytest.mark.parametrize("step", [0.01, 1e-4])
def test_noise_on_a_grid_is_not_examined(step: float) -> None:
    """A message of a sum that is not on the grid shows what of it is between two steps."""
    [found] = drawn_noise(runs(np.round(noise() / step) * step), ())
    assert found.verdict is None
    assert "what is not on this grid is not hidden" in found.not_examined[0]


def test_noise_of_single_precision_is_on_no_grid() -> None:
    [found] = drawn_noise(runs(noise().astype(np.float32).astype(float)), ())
    assert not found.not_examined


def test_few_numbers_ask_for_more_runs() -> None:
    [plain] = runs(noise()[:1])
    assert runs_needed(plain, ()) == 3_000 / (5 * 40)
    assert runs_needed(plain, ("other",)) == 200


def test_a_run_that_failed_is_said_with_its_last_line() -> None:
    assert in_short(RunError("DPA058", "not done after 1 s")) == "not done after 1 s"
    failed = RunError("DPA058", "ended; it said last:\n  line 9\nZeroDivisionError: by zero")
    assert in_short(failed) == "ended; it said last: ZeroDivisionError: by zero"


def moves(**sizes: float) -> RecordMoves:
    far = {how: sizes.get(how.partition(":")[0], 1.0) for how in ("present", *FAR)}
    return RecordMoves({(0, 1, "gaussian"): far}, None, {})


def test_one_length_in_all_directions_is_a_bound() -> None:
    refuse_unbounded(moves(), {0: [1]})
    with pytest.raises(NotExamined, match="by 1 to 1.01 times its noise"):
        refuse_unbounded(moves(level=1.01), {0: [1]})
    with pytest.raises(NotExamined, match="by 1 to 1.0013 times its noise"):
        refuse_unbounded(moves(level=1.0013), {0: [1]})
    refuse_unbounded(moves(level=1.0000021), {0: [1]})
    nearer, distance = moves(level=1.00000214), FAR[0].partition(":")[2].lstrip("-")
    [sizes] = nearer.sizes.values()
    less = {how: size / 2 if how.endswith(distance) else size for how, size in sizes.items()}
    with pytest.raises(NotExamined, match="by 1 to 1.0000021 times its noise"):
        refuse_unbounded(nearer._replace(sizes={(0, 1, "gaussian"): less}), {0: [1]})
    with pytest.raises(NotExamined, match="no record that was tried moves"):
        refuse_unbounded(moves(own=0.0, level=0.0, few=0.0, present=0.0), {0: [1]})


def test_few_inputs_alone_need_not_reach_all_layers() -> None:
    refuse_unbounded(moves(few=0.7), {0: [1]})
    refuse_unbounded(moves(few=0.0), {0: [1]})
    for direction in ("own", "level"):
        with pytest.raises(NotExamined, match="by 0.7 to 1 times its noise"):
            refuse_unbounded(moves(**{direction: 0.7}), {0: [1]})
    [sizes] = moves(few=0.7).sizes.values()
    growing = {h: 0.5 if h.startswith("few") and "1e3" in h else size for h, size in sizes.items()}
    with pytest.raises(NotExamined, match="by 0.7 to 1 times its noise"):
        refuse_unbounded(moves()._replace(sizes={(0, 1, "gaussian"): growing}), {0: [1]})


def answers(out: Path, *order: tuple[int, str]) -> Any:
    """A run in which a server, in a process of its own, answers these agents at these lines."""
    sent = [
        SimpleNamespace(process=0, sequence=i, source=0, destinations=(to,), call_site=site)
        for i, (to, site) in enumerate(order)
    ]
    sent.append(SimpleNamespace(process=1, sequence=0, source=1, destinations=(0,), call_site="x"))
    for event in sent:
        event.operator, event.tag, event.tensors = "http.reply", None, ()
    everything = [(event, np.zeros(1)) for event in sent]
    world = SimpleNamespace(out=out)
    none: dict[str, Any] = {"draws": [], "batches": [], "beside": (), "given_by_system": ()}
    return SimpleNamespace(all_sent=everything, id_of={}, world=world, **none)


@pytest.mark.parametrize(
    ("order", "other", "alike"),
    [
        ([(1, "a"), (2, "a")], [(2, "a"), (1, "a")], {"link"}),
        ([(1, "a"), (1, "b")], [(1, "b"), (1, "a")], set[str]()),
        ([(1, "a"), (2, "a")], [(1, "a")], set[str]()),
    ],
)
def test_a_server_answers_whoever_asks_first(
    order: list[tuple[int, str]], other: list[tuple[int, str]], alike: set[str], tmp_path: Path
) -> None:
    """The order on a link is compared in any case."""
    one, two = answers(tmp_path, *order), answers(tmp_path, *other)
    same = {
        o
        for o in get_args(Ordered)
        if not VisibleOutput.of(one, o).other_order(VisibleOutput.of(two, o))
    }
    assert same == alike


def test_what_is_printed_is_compared_but_for_rounding(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("loss 0.3000000001\na.py:3: RuntimeWarning: overflow\n  exp(x)\n")
    (tmp_path / "two").write_text("loss 0.3\n")
    (tmp_path / "other").write_text("loss 0.31\n")
    (tmp_path / "warned").write_text("loss 0.3\na.py:3: UserWarning: loss 0.3\n")
    warning = "a.py:3: RuntimeWarning: overflow\n  exp(x)\n"
    (tmp_path / "indented").write_text(f"loss 0.3\n{warning}  loss 0.3\n")
    one, two, other, warned = (printed(tmp_path / n) for n in ("one", "two", "other", "warned"))
    assert are_alike(one, two)
    assert not are_alike(one, other)
    assert not are_alike(one, warned)
    assert len(printed(tmp_path / "indented")) == 2
    assert printed(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("2026-01-02 03:04:05,678 loss 0.3", "2026-01-02 03:04:09,1 loss 0.3", True),
        ("2/6 [00:01<00:02, 3.4it/s]", "2/6 [00:03<00:02, 3.1it/s]", True),
        ("epoch 3 took 0.31 s", "epoch 3 took 1.2e-1 s", True),
        ("epoch 3 took 0.31 s, loss 0.3", "epoch 3 took 0.31 s, loss 0.4", False),
        ("round 1: 812.4 samples/s, 3.1 ms/step", "round 1: 9 samples/s, 12 ms/step", True),
        ("[1/2] 0:00:01.003456", "[1/2] 0:00:00.9", True),
        ("loss 0.3 in 1:02:03", "loss 0.4 in 1:02:03", False),
        ("3 steps", "4 steps", False),
        ("0.3 min", "0.4 min", False),
    ],
)
def test_times_that_are_printed_are_not_compared(
    one: str, other: str, alike: bool, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text(one)
    (tmp_path / "other").write_text(other)
    assert are_alike(printed(tmp_path / "one"), printed(tmp_path / "other")) is alike


def test_files_in_hidden_folders_count_too(tmp_path: Path) -> None:
    (tmp_path / ".log").mkdir()
    (tmp_path / ".log" / "loss.txt").write_text("0.3")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_text("")
    assert [*files_below(tmp_path, tmp_path / "out")] == [tmp_path / ".log" / "loss.txt"]


def test_a_file_that_dpaudit_prints_to_is_not_the_programs(tmp_path: Path) -> None:
    """As in `dpaudit audit captured.toml > audit.txt` in the folder of the program."""
    printed, own = tmp_path / "audit.txt", os.dup(1)
    (tmp_path / "data.txt").write_text("1")
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        try:
            found = files_below(tmp_path, tmp_path / "out")
        finally:
            os.dup2(own, 1)
            os.close(own)
    assert [*found] == [tmp_path / "data.txt"]
