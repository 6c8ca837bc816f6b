"""What a captured program's file may say, and how many runs its audit takes at least."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import CapturedConfig, RecordOptions


def test_the_least_number_of_runs_follows_from_rounds() -> None:
    """Three that share every draw; in each round three for the noise and one for each change."""
    config = CapturedConfig.model_validate(
        {"program": {"command": ["a"]}, "record": {"rounds": [1, 4], "candidates": ["scaled"]}}
    )
    assert config.least_runs == 3 + 2 * (3 + 1)
    assert config.attack_runs == 0


@pytest.mark.parametrize(
    "twice", [{"victims": (0, 0)}, {"rounds": (2, 2)}, {"candidates": ("scaled", "scaled")}]
)
def test_a_victim_round_or_candidate_is_named_once(twice) -> None:
    with pytest.raises(ValidationError, match="names one twice"):
        RecordOptions(**twice)


def test_folder_and_interpreter_are_relative_to_the_file(tmp_path: Path) -> None:
    program = {"command": ["a"], "folder": "there", "python": "venv/bin/python"}
    read = CapturedConfig.from_table({"program": program}, tmp_path / "audit.toml", "").program
    assert read.folder == (tmp_path / "there").resolve()
    assert read.python == tmp_path / "venv" / "bin" / "python"


INVERSION = {"name": "gradient-inversion", "message": "x", "model": "net:Net"}


def test_inversion_runs_each_round_with_its_noise_and_without() -> None:
    content = {"program": {"command": ["a"]}, "record": {"rounds": [1, 4, 5]}}
    config = CapturedConfig.model_validate({**content, "attack": [INVERSION, INVERSION]})
    assert config.attack_runs == 2 * 2 * 3


def test_a_range_of_pixels_rises() -> None:
    program = {"command": ["a"]}
    for wrong in ((1.0, 1.0), (1.0, 0.0)):
        attack = {**INVERSION, "value_range": wrong}
        with pytest.raises(ValidationError, match="the lowest value of a pixel, then the highest"):
            CapturedConfig.model_validate({"program": program, "attack": [attack]})
    both = {**INVERSION, "weights": "w.safetensors", "weights_message": "w"}
    with pytest.raises(ValidationError, match="give weights or weights_message, or neither"):
        CapturedConfig.model_validate({"program": program, "attack": [both]})


def test_a_seed_stands_in_for_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text('seed = 5\n[program]\ncommand = ["a"]\n')
    assert CapturedConfig.from_toml(path).seed == 5
    assert CapturedConfig.from_toml(path, seed=7).seed == 7
    assert CapturedConfig.from_toml(path, seed=0).seed == 0


PROGRAM = {"command": ["a"]}
NEIGHBOUR = {"text": "c", "epsilon": 1.0, "adjacency": "replace-one"}
MEMBERSHIP = {"name": "mutual-information"}


@pytest.mark.parametrize(
    "content, said",
    [
        ({"attack": [MEMBERSHIP]}, None),
        ({"attack": [MEMBERSHIP], "certify": {"runs": 0}},
         "attack[1].name: mutual-information is made from short runs; expected certify.runs above"),
        ({"attack": [INVERSION], "certify": {"runs": 0}}, None),
        ({"attack": [{**INVERSION, "options": {"targets": 0}}]}, "attack[1].options.targets: "),
        ({"certify": {"runs": 7}}, "certify: runs = 7; expected 0, or 8 at least"),
        ({"certify": {"runs": 8}}, None),
        ({"record": {"sampling_rate": 0.5}}, 'record: sampling_rate belongs to sampling = "poisson"'),
        ({"record": {"sampling": "none", "sampling_rate": 0.5}}, "record: sampling_rate belongs to"),
        ({"record": {"sampling": "fixed", "sampling_rate": 0.5}}, None),
        ({"record": {"sampling": "fixed"}}, 'record: sampling = "fixed" needs sampling_rate'),
        ({"threat_model": [{"name": "e"}, {"name": "f"}, {"name": "e"}]},
         'threat_model[3].name: another one is called "e"'),
        ({"claim": [NEIGHBOUR]}, None),
        ({"claim": [NEIGHBOUR], "record": {"candidates": ["present"]}},
         "record.candidates: replace-one needs two candidates at least"),
        ({"claim": [{**NEIGHBOUR, "adjacency": "add-remove"}], "record": {"candidates": ["present"]}},
         None),
        ({"claim": [{**NEIGHBOUR, "adjacency": "user"}]}, "claim[1].adjacency: a program is audited"),
        ({"claim": [{**NEIGHBOUR, "threat_model": "e"}]},
         'claim[1].threat_model: no threat model is called "e"'),
        ({"claim": [{**NEIGHBOUR, "threat_model": "e"}], "threat_model": [{"name": "e"}]}, None),
        ({"threat_model": [{"name": "e", "kind": "curious", "drawn": 1}]},
         "threat_model[1].drawn: agents of a program are not drawn"),
        ({"threat_model": [{"name": "e", "region": {"around": [0]}}]},
         "threat_model[1].region: the graph of a program is what it sends"),
        ({"threat_model": [{"name": "e", "kind": "final-model"}]},
         "threat_model[1].kind: a program is audited by its messages"),
        ({"threat_model": [{"name": "e", "kind": "curious", "agents": [0]}]},
         "threat_model[1].agents: it holds every victim ([0])"),
        ({"threat_model": [{"name": "e", "kind": "curious", "agents": [0]}],
          "record": {"victims": [0, 1]}}, None),
        ({"threat_model": [{"name": "e", "kind": "colluding", "agents": [0, 1, 2]}],
          "record": {"victims": [1, 0]}}, "threat_model[1].agents: it holds every victim ([0, 1])"),
    ],
)  # fmt: skip
def test_what_no_audit_of_a_program_can_mean_is_refused(content, said, tmp_path) -> None:
    content = {"program": PROGRAM, **content}
    if said is None:
        assert CapturedConfig.from_table(content, tmp_path / "a.toml", "")
        return
    with pytest.raises(ConfigError) as refused:
        CapturedConfig.from_table(content, tmp_path / "a.toml", "")
    assert str(refused.value).startswith(f"{tmp_path / 'a.toml'}: {said}")


def test_weights_are_relative_to_the_file(tmp_path: Path) -> None:
    attacks = [INVERSION, {**INVERSION, "weights": "w.safetensors"}, MEMBERSHIP]
    config = {"program": PROGRAM, "attack": attacks}
    read = CapturedConfig.from_table(config, tmp_path / "a.toml", "")
    assert read.weights == ((tmp_path / "w.safetensors").resolve(),)
    assert read.attack[1].plugin([3, 5]).rounds == (3, 5)


def test_what_a_file_of_a_program_need_not_say() -> None:
    read = CapturedConfig.model_validate({"program": PROGRAM, "attack": [MEMBERSHIP]})
    assert (read.program.seconds, read.program.cpu, read.certify.runs, read.seed) == (
        *(120.0, False, 400, 0),
    )
    assert (read.record.victims, read.record.rounds, read.record.sampling_rate) == ((0,), (1,), 1)
    assert read.record.hows() == ("absent", "present", "scaled", "negated", "other-label")
    [attack] = read.attack
    assert (attack.k, attack.n_permutations, attack.n_splits) == (3, 99, 20)
