"""Sensor fusion as the data of an audit: no records, no network, a residual in place of a loss."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.catalogue import catalogue
from dpaudit.commands.cli import app
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.pipeline.run import Runtime, prepare, run_audit
from dpaudit.training.sensor_fusion import SensorFusion
from tests.said import without_help

CONFIG = """\
seed = 4

[data]
name = "sensor-fusion"
n_agents = 5
sensors = { m = 4, p = 3, scale = 5.0 }

[graph]
name = "star"

[defense]
name = "sensitivity-reduced"
n_rounds = 60
epsilon = 2.0

[[claim]]
text = "Theorem 4.5"
epsilon = 2.0
adjacency = "function"
"""
MI = """
[[attack]]
name = "mutual-information"
message = "z"
private = "gradient"
rounds = [2]
trials = 200
"""


def command(folder: Path, text: str, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of stderr of the audit command."""
    (folder / "audit.toml").write_text(text)
    audit = ["audit", str(folder / "audit.toml"), "--out", str(folder / "run"), "--workers", "1"]
    done = CliRunner().invoke(app, [*audit, *arguments])
    return done.exit_code, without_help(done.stderr).strip().splitlines()


def test_sensor_fusion_is_audited_from_a_file_to_a_report(tmp_path, report) -> None:
    code, _ = command(tmp_path, CONFIG)
    assert code == 0
    result = AuditResult.read(tmp_path / "run" / "audit.json")
    assert result.provenance.data == "sensor-fusion"
    assert result.provenance.agent_sizes == (1,) * 5
    assert result.config["model"] is None
    for curve in result.utility.values():
        assert curve.accuracy == ()
        assert curve.loss_is == "squared distance to the optimum"
        assert len(curve.loss[-1]) == 5
    noisy, exact = (result.utility[world].loss[-1] for world in ("defense", "no-defense"))
    assert sum(exact) < sum(noisy) < sum(result.utility["defense"].loss[0])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "squared distance to the optimum over rounds" in page
    assert "test accuracy over rounds" not in page
    assert "test loss" not in page


def test_the_loss_is_the_residual_of_each_agent(tmp_path) -> None:
    (tmp_path / "audit.toml").write_text(CONFIG)
    prepared = prepare(AuditConfig.from_toml(tmp_path / "audit.toml"), Runtime())
    problem = prepared.learned.problem
    assert isinstance(problem, SensorFusion)
    assert problem.M.shape == (5, 4, 3)
    assert 4.5 < problem.M.max() <= 5.0
    X = problem.initial(prepared.streams)
    loss, accuracy = problem.evaluate(X)
    assert accuracy is None
    assert loss.shape == (5,)
    assert loss.sum().item() == pytest.approx(problem.residual(X).item(), rel=1e-12)


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_curve(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)
    (tmp_path / "audit.toml").write_text(CONFIG)
    config = AuditConfig.from_toml(tmp_path / "audit.toml")
    whole = run_audit(config, tmp_path / "whole", Runtime(cores=1), CONFIG)

    def stop(what: str, done: int, total: int) -> None:
        if done == 33:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(config, tmp_path / "run", Runtime(cores=1), CONFIG, on_progress=stop)
    again = run_audit(config, tmp_path / "run", Runtime(cores=1), CONFIG, resume=True)
    assert again.utility == whole.utility


@pytest.mark.slow
def test_mutual_information_is_measured_on_it(tmp_path) -> None:
    code, _ = command(tmp_path, CONFIG + MI)
    assert code == 0
    result = AuditResult.read(tmp_path / "run" / "audit.json")
    assert any(f.kind == "mutual-information" and f.metrics for f in result.findings)


def test_attacks_on_images_are_refused_in_one_line(tmp_path) -> None:
    text = CONFIG.replace('name = "sensitivity-reduced"', 'name = "d-psgd"')
    text = text.replace("epsilon = 2.0\n", "", 1)
    attack = '[[attack]]\nname = "gradient-inversion"\nmessage = "gradient"\nrounds = [5]\n'
    code, lines = command(tmp_path, f"{text}\n{attack}")
    assert code == 2
    assert len(lines) == 1, lines
    assert "these data are no records" in lines[0]
    assert "gradient inversion needs records" in lines[0]


def test_a_defense_that_clips_records_is_refused_in_one_line(tmp_path) -> None:
    text = CONFIG.partition("[[claim]]")[0]
    text = text.replace('name = "sensitivity-reduced"', 'name = "dp-dpsgd"')
    code, lines = command(tmp_path, text.replace("epsilon = 2.0", "noise_multiplier = 1.0", 1))
    assert code == 2
    assert len(lines) == 1, lines
    assert "there is no per-record gradient to clip" in lines[0]


@pytest.mark.parametrize(
    "old, new, line",
    [
        ("[graph]", '[model]\nname = "mlp"\n\n[graph]', "model: sensor-fusion trains no network"),
        ("p = 3", "p = 0", "data.sensors.p: Input should be greater than 0"),
        ("scale =", "scala =", 'data.sensors.scala: unknown key (did you mean "scale"?)'),
        ('name = "sensor-fusion"', 'name = "digits"', "data: sensors belongs to name"),
    ],
)
def test_a_mistake_about_sensors_is_said_with_its_key(tmp_path, old, new, line) -> None:
    (tmp_path / "audit.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError) as error:
        AuditConfig.from_toml(tmp_path / "audit.toml")
    assert line in str(error.value).splitlines()[0]


def test_records_need_a_network(tmp_path) -> None:
    text = CONFIG.replace('name = "sensor-fusion"', 'name = "digits"').replace(
        "sensors", "# sensors"
    )
    (tmp_path / "audit.toml").write_text(text.replace("n_rounds = 60", "n_round = 60"))
    with pytest.raises(ConfigError) as error:
        AuditConfig.from_toml(tmp_path / "audit.toml")
    assert [line.split(": ", 1)[1] for line in str(error.value).splitlines()] == [
        'defense.n_round: unknown key (did you mean "n_rounds"?); known here: '
        + str(error.value).splitlines()[0].split("known here: ")[1],
        "model: Field required",
    ]


def test_sensor_fusion_is_listed_among_the_data_sets() -> None:
    assert "sensor-fusion" in {entry["name"] for entry in catalogue("datasets").entries}
