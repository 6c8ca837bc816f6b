"""Every way to get an audit file wrong, and the one line that is said about it."""

from pathlib import Path

import pytest

from dpaudit.commands.starter import starter
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig, with_fixed_model
from dpaudit.files.documents import line_of
from dpaudit.files.options import graph_options
from dpaudit.pipeline.run import Runtime, prepare

VALID = """\
seed = 3

[data]
name = "digits"
partition = { kind = "dirichlet", alpha = 0.5 }
n_agents = 4

[graph]
name = "ring"

[model]
name = "lenet"

[defense]
name = "dpdl"
n_rounds = 20
epsilon = 0.5

[[claim]]
text = "Theorem 1"
epsilon = 0.5
delta = 1e-5

[[threat_model]]
name = "eavesdropper"

[[threat_model]]
name = "agent 3"
kind = "curious"
agents = [3]

[[attack]]
name = "gradient-inversion"
message = "cross_gradient"
rounds = [10, 20]
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "audit.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        AuditConfig.from_toml(path)
    return [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]


def test_a_valid_file_is_completed_with_every_default(tmp_path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(VALID)
    config = AuditConfig.from_toml(path)
    assert config.defense.options["momentum"] == 0.7
    assert config.attack[0].options["targets"] == 8
    assert config.graph.name == "ring"
    assert AuditConfig.from_toml(path, seed=99).seed == 99
    again = AuditConfig.from_dict(config.model_dump(mode="json"))
    assert again == config


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("n_agents = 4", "n_agent = 4", 'audit.toml:6: data.n_agent: unknown key (did you mean "n_agents"?)'),
        ("seed = 3", "sed = 3", 'audit.toml:1: sed: unknown key (did you mean "seed"?)'),
        ("n_rounds = 20", "n_round = 20", 'audit.toml:16: defense.n_round: unknown key (did you mean "n_rounds"?)'),
        ("alpha = 0.5", "alpha = 0.5, alfa = 1", 'audit.toml:5: data.partition.alfa: unknown key (did you mean "alpha"?)'),
        ("n_agents = 4", "n_agents = -4", "audit.toml:6: data.n_agents: Input should be greater than 0, got -4"),
        ("n_rounds = 20", 'n_rounds = "x"', "audit.toml:16: defense.n_rounds: Input should be a valid integer"),
        ("n_rounds = 20", "n_rounds = 20\nnoise_multiplier = -1.0", "audit.toml:17: defense.noise_multiplier: Input should be greater than or equal to 0"),
        ("epsilon = 0.5\n\n[[", "epsilon = 0.5\nnoise_multiplier = 1.0\n\n[[", "audit.toml:14: defense: give either epsilon"),
        ('name = "dpdl"', 'name = "dpld"', 'audit.toml:15: defense.name: no defense is called "dpld" (did you mean "dpdl"?)'),
        ('name = "ring"', 'name = "rign"', 'audit.toml:9: graph.name: "rign" is not known (did you mean "ring"?)'),
        ('"cross_gradient"', '"cross_gradients"', 'audit.toml:34: attack[1].message: dpdl offers no "cross_gradients" (did you mean "cross_gradient"?)'),
        ("[10, 20]", "[10, 21]", "audit.toml:35: attack[1].rounds: round 21 is beyond the run of 20 rounds"),
        ("[10, 20]", "[]", "audit.toml:35: attack[1].rounds"),
        ("agents = [3]", "agents = [4]", "audit.toml:30: threat_model[2].agents: there is no agent 4; with n_agents = 4 they are 0 to 3"),
        ("curious\"\nagents = [3]", "colluding\"\ndrawn = 4", "audit.toml:30: threat_model[2].drawn: draws 4 of 4 agents"),
        ("agents = [3]", "agents = [-1]", "audit.toml:30: threat_model[2].agents: there is no agent -1"),
        ('"eavesdropper"', '"eavesdropper"\nlinks = [[0, 4]]', "audit.toml:26: threat_model[1].links: there is no agent 4"),
        ('"eavesdropper"', '"eavesdropper"\nregion = { around = [4] }', "audit.toml:26: threat_model[1].region.around: there is no agent 4"),
        ("agents = [3]", "agents = [1, 3]", "audit.toml:27: threat_model[2]: kind \"curious\" takes agents: one"),
        ('name = "agent 3"', 'name = "eavesdropper"', "audit.toml:28: threat_model[2].name: another threat model"),
        ('name = "agent 3"', 'name = "Eavesdropper "', 'audit.toml:28: threat_model[2].name: "Eavesdropper " differs from "eavesdropper" by case, spaces or signs alone'),
        ('name = "agent 3"', 'name = "\uff45avesdropper"', 'audit.toml:28: threat_model[2].name: "\uff45avesdropper" differs from "eavesdropper"'),
        ("agents = [3]", "agents = [true]", "audit.toml:30: threat_model[2].agents[1]: Input should be a valid integer, got 'true'"),
        ("agents = [3]", "agents = [3.0]", "audit.toml:30: threat_model[2].agents[1]: Input should be a valid integer, got 3.0"),
        ('"eavesdropper"', '"eavesdropper"\nlinks = []', "audit.toml:24: threat_model[1]: links is empty, so that nothing is read"),
        ('"eavesdropper"', '"eavesdropper"\nlinks = [[1]]', "audit.toml:26: threat_model[1].links[1]: expected 2 values, got [1]"),
        ('"eavesdropper"', '"eavesdropper"\nlinks = [[2, 2]]', "audit.toml:24: threat_model[1]: links: agent 2 sends itself nothing"),
        ('"eavesdropper"', '"eavesdropper"\nlinks = [[0, 1], [0, 1]]', "audit.toml:24: threat_model[1]: links: 0 -> 1 is there twice"),
        ("[[claim]]\n", '[[claim]]\ntext = "Theorem 1"\nepsilon = 0.5\ndelta = 1e-5\n[[claim]]\n', "audit.toml:23: claim[2]: says what claim[1] says"),
        ("delta = 1e-5", "delta = 1.5", "audit.toml:22: claim[1].delta: Input should be less than 1"),
        ("delta = 1e-5", "delta = 0.9", "audit.toml:19: claim[1]: delta = 0.9 promises nothing"),
        ("delta = 1e-5", "delta = true", "audit.toml:22: claim[1].delta: Input should be a valid number, got 'true'"),
        ("epsilon = 0.5\ndelta = 1e-5", "mu = 1e300", "audit.toml:21: claim[1].mu: Input should be less than or equal to 1000000"),
        ("epsilon = 0.5\ndelta", "mu = 0.5\ndelta", "audit.toml:19: claim[1]: delta belongs to epsilon"),
        ("delta = 1e-5", 'threat_model = "eve"', "audit.toml:22: claim[1].threat_model: no threat model"),
        ('text = "Theorem 1"\n', "", "audit.toml:19: claim[1].text: Field required"),
        ("seed = 3", "seed = ", "audit.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_line_and_key(tmp_path, old, new, expected) -> None:
    assert old in VALID
    lines = problems(tmp_path, VALID.replace(old, new))
    assert len(lines) == 1, lines
    assert lines[0].startswith(expected)


@pytest.mark.parametrize(
    "name, option, expected",
    [
        ("likelihood-ratio", "n_rounds = 21", "n_rounds: the run has 20 rounds; expected 1 to 20, got 21"),
        ("canaries", "n_rounds = 99", "n_rounds: the run has 20 rounds; expected 1 to 20, got 99"),
        ("canaries", "guesses = 1001", "guesses: there are 1000 canaries; each is guessed once at most"),
        ("sensitivity", "rounds = []", "rounds: Tuple should have at least 1 item"),
        ("sensitivity", "rounds = [21]", "rounds: round 21 is beyond the run of 20 rounds"),
        ("sensitivity", "victim = 4", "victim: there is no agent 4; with n_agents = 4 they are 0 to 3"),
        ("sensitivity", "threat_models = []", "threat_models: Tuple should have at least 1 item"),
        ("likelihood-ratio", "alpha = 0.5", "alpha: Input should be less than or equal to 0.05, got 0.5"),
        ("canaries", "alpha = 0.06", "alpha: Input should be less than or equal to 0.05, got 0.06"),
        ("gradient-inversion", 'message = "cross_gradient"\nrounds = [2]\nbatch_sizes = []', "batch_sizes: Tuple should have at least 1 item"),
    ],
)  # fmt: skip
def test_an_option_that_points_to_nothing_is_one_line(tmp_path, name, option, expected) -> None:
    text = VALID.partition("[[attack]]")[0] + f'[[attack]]\nname = "{name}"\n{option}\n'
    (line,) = problems(tmp_path, text)
    assert f"attack[1].{expected}" in line


def test_the_whole_run_and_every_canary_may_be_asked_for(tmp_path) -> None:
    (tmp_path / "audit.toml").write_text(
        VALID.partition("[[attack]]")[0]
        + '[[attack]]\nname = "likelihood-ratio"\nn_rounds = 20\nalpha = 0.05\n'
        + '[[attack]]\nname = "canaries"\nn_rounds = 20\ncanaries = 20\nguesses = 20\n'
    )
    assert len(AuditConfig.from_toml(tmp_path / "audit.toml").attack) == 2


def test_all_mistakes_are_reported_at_once(tmp_path) -> None:
    text = VALID.replace("n_agents = 4", "n_agents = 0").replace("delta = 1e-5", "delta = -1")
    assert len(problems(tmp_path, text)) == 2


def test_a_missing_file_is_one_line(tmp_path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        AuditConfig.from_toml(tmp_path / "absent.toml")


def test_a_data_path_is_relative_to_the_file_that_names_it(tmp_path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(VALID.replace('name = "digits"', 'path = "my.npz"'))
    assert AuditConfig.from_toml(path).data.path == (tmp_path / "my.npz").resolve()


def test_what_init_writes_is_valid(tmp_path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter("dpdl"))
    config = AuditConfig.from_toml(path)
    assert [a.options["message"] for a in config.attack if "message" in a.options] == [
        "cross_gradient",
        "momentum-difference",
        "momentum-exact",
        "momentum-stripped",
    ]


def test_what_init_writes_is_valid_for_any_defense(tmp_path, own_defense) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter(own_defense))
    assert AuditConfig.from_toml(path).defense.name == own_defense


@pytest.mark.slow
def test_what_init_writes_for_any_defense_can_be_run(tmp_path, own_defense) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter(own_defense))
    config = AuditConfig.from_toml(path)
    prepared = prepare(config, Runtime())
    assert prepared.defenses["defense"].n_rounds == config.defense.options["n_rounds"]


def test_the_line_of_a_key_counts_tables_of_arrays() -> None:
    text = 'a = 1\n[b]\nc = 2\n[[d]]\ne = 1\n[[d]]\n"e" = 2\nf.g = 3\n'
    assert line_of(text, ("b", "c")) == 3
    assert line_of(text, ("d", 1, "e")) == 7
    assert line_of(text, ("d", 1, "f", "g")) == 8
    assert line_of(text, ("d", 1, "absent")) == 6
    assert line_of(text, ("absent",)) is None


def test_which_graphs_are_drawn_and_which_are_drawn_anew() -> None:
    found = [graph_options(name) for name in ("ring", "erdos-renyi", "pairwise", "server")]
    assert [graph.is_random for graph in found] == [False, True, True, True]
    assert [graph.is_redrawn for graph in found[:3]] == [False, False, True]


def test_a_model_is_fixed_where_there_is_one() -> None:
    content = {"seed": 1, "model": {"name": "lenet"}}
    assert with_fixed_model(content, "x") == {"seed": 1, "model": {"name": "lenet", "fix": True}}
    assert content["model"] == {"name": "lenet"}
    for none in ({"seed": 1}, {"model": "lenet"}):
        with pytest.raises(ConfigError, match=r"^x: this audit has no \[model\] to fix"):
            with_fixed_model(none, "x")
