"""What an audit takes and could prove, before anything of it is done."""

import signal
import time
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name, Role
from dpaudit.pipeline import costs
from dpaudit.pipeline.jobs import powers_of
from dpaudit.pipeline.run import Runtime, outlook, prepare, run_audit
from tests.said import without_help
from tests.small_audits import digits_config

DEFENSE = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 1.0}
ATTACK = {"name": "likelihood-ratio", "trials": 200}


def audit(*attacks: dict) -> AuditConfig:
    return digits_config(*attacks, model="logistic", n_agents=4, defense=DEFENSE)


@pytest.mark.slow
def test_its_power_is_that_of_the_audit_itself(tmp_path: Path) -> None:
    """Not one run is needed to know it: expected bound, ceiling and trials are the same numbers."""
    _, [power] = outlook(audit(ATTACK), Runtime(cores=1))
    result = run_audit(audit(ATTACK), tmp_path, Runtime(cores=1))
    [test] = [f for f in result.findings if f.role is Role.TEST]
    assert (power.attack, power.claim, power.threat_model) == (
        "likelihood-ratio",
        0,
        "eavesdropper",
    )
    for name in (Name.EXPECTED_BOUND, Name.CEILING, Name.TRIALS_NEEDED):
        assert power.metrics[name] == test.metrics[name]


def test_every_part_has_a_time_and_a_size() -> None:
    costs, _ = outlook(audit(ATTACK, {"name": "canaries", "canaries": 20}), Runtime(cores=1))
    parts = list(costs.by_part())
    assert [part for part, *_ in parts] == [
        "training (defense)",
        "training (no-defense)",
        "attack 00 likelihood-ratio (eavesdropper)",
        "attack 01 canaries (eavesdropper)",
        "examination sensitivity",
        "noise-of-the-run",
    ]
    assert all(size for _, _, size, _ in parts)
    assert all(seconds is not None for _, seconds, *_ in parts)


def test_an_attack_in_several_jobs_is_one_part() -> None:
    inversion = {"name": "gradient-inversion", "message": "view", "rounds": [1], "targets": 2}
    costs, _ = outlook(audit(inversion), Runtime(cores=1))
    [(part, seconds, _, n_jobs)] = [one for one in costs.by_part() if "inversion" in one[0]]
    assert seconds is not None  # the rounds that it reads were played
    assert part == "attack 00 gradient-inversion (eavesdropper)"
    assert n_jobs == 4  # two worlds, and two batch sizes: 1 and that of the defense


class Reports:
    """In the place of an attack: it reports steps, each of which takes a tenth of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_steps: int, total: int) -> None:
        self.now, self.n_steps, self.total = 0.0, n_steps, total
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now)

    def measure(self, context: object, threat_model: object, on_step: Any) -> None:
        self.now += 0.2  # before the first step
        for k in range(1, self.n_steps + 1):
            self.now += 0.1
            on_step(k, self.total)


@pytest.mark.parametrize(
    ("n_steps", "total", "expected"), [(50, 50, 0.2 + 50 * 0.1), (1, 2, 0.3), (0, 5, 0.2)]
)
def test_first_steps_tell_the_time_of_an_attack(
    monkeypatch: pytest.MonkeyPatch, n_steps: int, total: int, expected: float
) -> None:
    """One that ends soon takes what it took."""
    job: Any = SimpleNamespace(attack=Reports(monkeypatch, n_steps, total), threat_model=None)
    assert costs._seconds(job, None) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("late", [False, True])
def test_an_attack_on_rounds_not_soon_played_has_no_time(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Without its rounds, membership refuses at once, which is not how long it takes."""
    monkeypatch.setattr(costs, "PATIENCE", 60.0)
    real = costs.train

    def stopped(*given: Any) -> None:
        *rest, on_round = given

        def for_two_rounds(done: int, total: int) -> None:
            on_round(done, total)
            if done == 2:
                raise costs.Enough

        real(*rest, for_two_rounds)

    monkeypatch.setattr(costs, "train", stopped)
    attack = {"name": "membership", "rounds": [4 if late else 1]}  # which reads round 2, too
    defense = {**DEFENSE, "n_rounds": 4}
    config = digits_config(attack, model="logistic", n_agents=4, defense=defense)
    found, _ = outlook(config, Runtime(cores=1))
    [seconds] = [seconds for part, seconds, *_ in found.by_part() if "membership" in part]
    assert (seconds is None) == late


@pytest.mark.parametrize("act", ["falls", "is late"])
def test_of_an_attack_that_reports_late_no_time_is_known(
    monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    def measure(*given: object) -> None:
        if act == "falls":
            raise ZeroDivisionError
        time.sleep(10)

    monkeypatch.setattr(costs, "PATIENCE", 0.1)
    job: Any = SimpleNamespace(attack=SimpleNamespace(measure=measure), threat_model=None)
    before = signal.getsignal(signal.SIGALRM)
    assert costs._seconds(job, None) is None  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


HIDES_NO_AGENT = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "agent-identity", "scope": "message"}
RECORD = {"epsilon": 1.0, "delta": 1e-5}
REDRAWN = {
    "graph": {"name": "erdos-renyi", "p": 0.9, "redrawn": True},
    "defense": {**DEFENSE, "allow_outside_theory": True},
}


@pytest.mark.parametrize(
    ("claims", "changed", "told"),
    [
        ([RECORD, HIDES_NO_AGENT], {}, [0]),
        ([RECORD], REDRAWN, [0]),
        (
            [RECORD],
            {**REDRAWN, "threat_model": [{"name": "eavesdropper", "knows_draws": False}]},
            [],
        ),
    ],
    ids=["agents", "draws", "draws it does not know"],
)
def test_with_little_time_claims_left_aside_are_not_told(
    claims: list[dict], changed: dict, told: list[int]
) -> None:
    """No run tests what is claimed of agents whom no message hides, or with draws not known."""
    asked = audit(ATTACK).model_dump(mode="json", exclude_none=True) | changed
    asked["claim"] = [{"text": f"claim {i}", **claim} for i, claim in enumerate(claims)]
    config = AuditConfig.from_dict(asked)
    prepared = prepare(config, Runtime(cores=1))
    for patience in (inf, 0.0):
        assert [power.claim for power in powers_of(prepared, patience)] == told


CONFIG = """\
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 4
batch_size = 4
noise_multiplier = 1.0
[[claim]]
text = "ours"
epsilon = 1.0
delta = 1e-5
[[attack]]
name = "likelihood-ratio"
trials = 200
"""


def said(folder: Path, text: str, *options: str) -> tuple[int, list[str], str]:
    (folder / "audit.toml").write_text(text)
    out = folder / "run"
    done = CliRunner().invoke(
        app, ["audit", str(folder / "audit.toml"), "--out", str(out), "--dry-run", *options]
    )
    assert not out.exists()
    return done.exit_code, done.stdout.splitlines(), without_help(done.stderr)


def test_the_command_prints_it_and_runs_nothing(tmp_path: Path, monkeypatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr("dpaudit.pipeline.run.Workers", never)
    code, lines, _ = said(tmp_path, CONFIG)
    assert code == 0
    assert lines[0].split() == ["time", "memory", "part"]
    assert lines[1].endswith("MB  training (defense)")
    assert lines[-2] == (
        "ours: (1, 1e-05)-DP for the whole run, add-remove adjacency, against eavesdropper:"
    )
    assert lines[-1].startswith("  likelihood-ratio: the epsilon expected to be certified is ")


def test_a_claim_that_no_number_of_runs_refutes_is_named(tmp_path: Path) -> None:
    _, lines, _ = said(tmp_path, CONFIG.replace("epsilon = 1.0", "epsilon = 1000.0"))
    assert lines[-1].endswith("; no number of trials that can be played refutes the claim")


def test_without_an_attack_on_it_a_claim_has_no_power(tmp_path: Path) -> None:
    _, lines, _ = said(tmp_path, CONFIG.partition("[[attack]]")[0])
    assert lines[-1] == "  no attack was requested"


@pytest.mark.parametrize(
    "text, options, expected",
    [
        (CONFIG.replace("ring", "rign"), [], 'did you mean "ring"'),
        (CONFIG, ["--max-memory", "1MB"], "of memory, and "),
        (CONFIG, ["--max-memory", "much"], "--max-memory"),
        (CONFIG, ["--fix-model"], "model.fix: the network has no BatchNorm"),
        (CONFIG.replace('model.name = "logistic"', ""), ["--fix-model"], "has no [model] to fix"),
    ],
)
def test_what_could_not_run_is_refused_here_too(tmp_path, text, options, expected) -> None:
    code, lines, error = said(tmp_path, text, *options)
    assert (code, lines) == (2, [])
    assert expected in error
    assert error.count("\n") == 1


TOO_LARGE = [
    (
        'name = "gradient-inversion"\nmessage = "view"\nrounds = [2]',
        "32 unknowns with n_agents = 4; expected 20 at most, about n_agents = 2 with as many links "
        'each, or message = "noisy-gradient"',
    ),
    (
        'name = "mutual-information"\nmessage = "view"\ntrials = 40',
        "32 unknowns with n_agents = 4; expected 20 at most, about n_agents = 2 with as many links "
        'each, or message = "noisy-gradient", "x"',
    ),
    (
        'name = "membership"\nrounds = [2]',
        "32 unknowns with n_agents = 4; expected 20 at most, about n_agents = 2 with as many links "
        "each",
    ),
    (
        'name = "gradient-inversion"\nmessage = "unmixed"\nrounds = [3]',
        "rounds: the first 3 rounds draw 12 noises with n_agents = 4; expected 10 at most, "
        "of about 2 rounds",
    ),
]


@pytest.mark.parametrize("asked", [["--dry-run"], []])
@pytest.mark.parametrize(("attack", "expected"), TOO_LARGE)
def test_a_view_too_large_is_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, expected: str, asked: list[str]
) -> None:
    monkeypatch.setattr("dpaudit.game.estimating.window.MOST_UNKNOWNS", 20)
    monkeypatch.setattr("dpaudit.game.estimating.estimate.MOST_DRAWS", 10)
    file, out = tmp_path / "audit.toml", tmp_path / "run"
    file.write_text(f"{CONFIG.partition('[[attack]]')[0]}[[attack]]\n{attack}\n")
    done = CliRunner().invoke(app, ["audit", str(file), "--out", str(out), *asked])
    assert (done.exit_code, done.stdout, out.exists()) == (2, "", False)
    assert without_help(done.stderr).startswith(f"error: attack {attack.split(chr(34))[1]}: ")
    assert without_help(done.stderr).endswith(f"{expected}\n")
    assert without_help(done.stderr).count("\n") == 1
