"""dpaudit.audit: from a path, a dictionary or a config, and on a caller's own objects."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import dpaudit
from dpaudit.accounting import Release, epsilon
from dpaudit.data.datasets import from_arrays
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.caller_objects import CallerObjects
from tests.small_audits import digits_audit

pytestmark = pytest.mark.usefixtures("no_report")
CLAIM = {"text": "ours <b>", "epsilon": 0.5, "delta": 1e-5}
WITHOUT_OBJECTS = {
    "seed": 3,
    "data": {"n_agents": 4},
    "graph": {"name": "ring"},
    "claim": [CLAIM],
}
DEFENSE = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 1.0}
NAMED = {
    **WITHOUT_OBJECTS,
    "data": {"name": "digits", "n_agents": 4},
    "model": {"name": "logistic"},
    "defense": DEFENSE,
}


def without_timing(result: AuditResult) -> dict:
    return result.model_dump(exclude={"timing"})


@pytest.fixture(scope="module")
def of_a_dictionary() -> AuditResult:
    return dpaudit.audit(NAMED, cores=1)


def own_arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((100, 9), dtype="f4"), np.arange(100) % 3


def own_defense() -> DPDPSGD:
    return DPDPSGD(n_rounds=2, batch_size=4, noise_multiplier=1.0)


def test_a_path_a_dictionary_and_a_config_give_the_same_audit(
    tmp_path: Path, of_a_dictionary: AuditResult
) -> None:
    from_config = dpaudit.audit(AuditConfig.from_dict(NAMED), cores=1)
    path = tmp_path / "audit.toml"
    path.write_text(digits_audit(1.0, 0.5, claim="ours <b>"))
    from_path = dpaudit.audit(str(path), out=tmp_path / "run", cores=1)
    from_dict = without_timing(of_a_dictionary)
    assert from_dict == without_timing(from_config) == without_timing(from_path)
    assert AuditResult.read(tmp_path / "run" / "audit.json") == from_path
    assert of_a_dictionary.verdict is Verdict.UNSUPPORTED


def test_own_defense_data_and_network_need_no_entry_point() -> None:
    torch.manual_seed(0)
    reports = []
    result = dpaudit.audit(
        WITHOUT_OBJECTS,
        defense=own_defense(),
        data=own_arrays(),
        model=nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)),
        on_progress=lambda what, done, total: reports.append((what, done, total)),
        cores=1,
    )
    assert result.config["defense"]["name"] == "DPDPSGD"
    assert result.provenance.n_records == 79  # 100 but for a fifth of each class
    assert ("training, defense", 2, 2) in reports
    assert [claim.threat_model for claim in result.claims] == ["eavesdropper"]


@pytest.mark.slow
def test_importable_objects_travel_and_give_the_same() -> None:
    torch.manual_seed(0)
    own = {"defense": own_defense(), "data": own_arrays(), "model": nn.Linear(9, 3)}
    one, two = (dpaudit.audit(WITHOUT_OBJECTS, **own, cores=cores) for cores in (1, 2))
    assert without_timing(one) == without_timing(two)


def test_an_object_others_cannot_import_is_audited_on_one_core() -> None:
    class Here(DPDPSGD):
        pass

    here = Here(n_rounds=2, batch_size=4, noise_multiplier=1.0)
    assert not CallerObjects(here).travels
    assert CallerObjects(own_defense()).travels
    result = dpaudit.audit(NAMED, defense=here, cores=2)
    assert result.config["defense"]["name"].endswith("Here")


def test_a_compiled_network_is_audited_as_it_was_before() -> None:
    network = nn.Linear(9, 3)
    compiled = torch.compile(network, backend="eager")
    own = {"defense": own_defense(), "data": own_arrays(), "cores": 1}
    plain, same = (dpaudit.audit(WITHOUT_OBJECTS, model=m, **own) for m in (network, compiled))
    assert without_timing(plain) == without_timing(same)


def test_training_starts_from_the_parameters_of_an_own_network() -> None:
    still = DPDPSGD(n_rounds=1, batch_size=4, noise_multiplier=0.0, learning_rate=1e-12)
    network = nn.Linear(9, 3)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    result = dpaudit.audit(
        WITHOUT_OBJECTS, defense=still, data=own_arrays(), model=network, cores=1
    )
    share_of_class_0 = np.mean(from_arrays(*own_arrays(), seed=3).y_test.numpy() == 0)
    assert result.utility["defense"].accuracy[-1] == pytest.approx([share_of_class_0] * 4)


@pytest.mark.parametrize(
    "own, expected",
    [
        ({"model": nn.Linear(9, 4)}, r"Linear turns two records into \[2, 4\]; expected \[2, 3\]"),
        ({"model": nn.Linear(8, 3)}, r"Linear cannot take records of shape \[9\]"),
        ({"model": nn.Sequential(nn.Linear(9, 3), nn.BatchNorm1d(3))}, "give fix_model=True"),
        ({"model": spectral_norm(nn.Linear(9, 3))}, "expected a network whose forward changes no"),
        ({"model": torch.jit.script(nn.Linear(9, 3))}, "ScriptModule cannot take records"),
        ({"model": nn.Linear}, "model: the class Linear; expected a torch.nn.Module"),
        ({"defense": DPDPSGD}, "defense: the class DPDPSGD; expected an object of a defense"),
        ({"data": (np.zeros((5, 3), "f4"),)}, "data: a tuple of 1; expected two arrays"),
        ({"model": 3}, "model: a int; expected a torch.nn.Module, or the name"),
        ({"data": (np.zeros((5, 3), "f4"), np.zeros(4, int))}, "data: y has shape"),
        ({"data": (np.zeros((5, 3), "f4"), np.zeros(5, int))}, "single class"),
    ],
)
def test_own_objects_that_do_not_fit_are_one_line(own: dict, expected: str) -> None:
    objects = {"defense": own_defense(), "data": own_arrays(), "model": nn.Linear(9, 3), **own}
    with pytest.raises(DpauditError, match=expected) as error:
        dpaudit.audit(WITHOUT_OBJECTS, **objects, cores=1)
    assert "\n" not in str(error.value)


def test_batch_normalisation_is_fixed_where_that_is_asked_for() -> None:
    own = {"defense": own_defense(), "data": own_arrays()}
    network = nn.Sequential(nn.Linear(9, 3), nn.BatchNorm1d(3))
    result = dpaudit.audit(WITHOUT_OBJECTS, **own, model=network, cores=1, fix_model=True)
    said = "The model was fixed, each BatchNorm replaced: 1: BatchNorm1d(3) by GroupNorm(1, 3)."
    assert said in result.notes
    assert result.config["model"] == {"name": "Sequential", "fix": True, "width": None}
    with pytest.raises(DpauditError, match=r"model\.fix: the network has no BatchNorm"):
        dpaudit.audit(WITHOUT_OBJECTS, **own, model=nn.Linear(9, 3), cores=1, fix_model=True)


def test_what_is_left_out_without_an_object_is_missing() -> None:
    with pytest.raises(DpauditError, match="model: Field required"):
        dpaudit.audit(WITHOUT_OBJECTS, defense=own_defense(), data=own_arrays())


def test_a_notebook_shows_verdicts_and_escapes_every_text(of_a_dictionary: AuditResult) -> None:
    html = of_a_dictionary._repr_html_()
    assert "unsupported" in html
    assert "ours &lt;b&gt;" in html
    assert "<b>:" not in html
    assert html.startswith("<div>")


def test_importing_dpaudit_loads_no_torch_until_an_audit() -> None:
    """What an audit does without takes as long to import as torch does."""
    code = (
        "import sys, dpaudit; assert 'torch' not in sys.modules; "
        f"dpaudit.audit({NAMED}, cores=1); import dpaudit.capture.audit; "  # as the command does
        "loaded = set(sys.modules); assert 'torch' in loaded; "
        "needless = loaded & {'scipy.stats', 'scipy.signal', 'sklearn', 'pandas'}; "
        "assert not needless, needless"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_two_claims_of_one_text_are_judged_apart() -> None:
    """Accounting settles 8; that so many runs could have refuted it decides nothing."""
    theorem = {"text": "Theorem 1", "delta": 1e-5}
    result = dpaudit.audit(
        {
            **NAMED,
            "claim": [{**theorem, "epsilon": 0.1}, {**theorem, "epsilon": 8.0}],
            "defense": {**DEFENSE, "n_rounds": 1, "batch_size": 300, "sampling": "poisson"},
            "attack": [{"name": "likelihood-ratio", "trials": 40_000}],
        },
        cores=1,
    )
    broken, kept = result.claims
    assert (broken.text, kept.text) == ("Theorem 1", "Theorem 1")
    assert broken.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED)
    assert kept.verdict is Verdict.SUPPORTED
    evidence = [{result.findings[i].claim for i in claim.because} for claim in result.claims]
    assert evidence == [{0, None}, {1, None}]  # None: the noise of the run bears on both


OWN_LAYER = """\
import numpy as np
from torch import nn

class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)

OWN = {"data": (np.random.default_rng(1).random((100, 9), "f4"), np.arange(100) % 3)}
OWN["model"] = nn.Sequential(Doubled(9, 3))
"""


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What a script of this text says that stands beside an audit.toml."""
    (folder / "audit.toml").write_text(digits_audit(1.0, 0.5))
    (folder / "example.py").write_text(text)
    return subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_the_example_of_the_readme_works_without_a_guard(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [example] = re.findall(r"```python\n(import dpaudit\n.*?)```", readme, re.DOTALL)
    two_cores = example.replace('"audit.toml")', '"audit.toml", cores=2)')
    assert two_cores != example
    done = script(tmp_path, two_cores)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    [line] = done.stdout.splitlines()  # no process ran the script again
    assert line.startswith("unsupported value=")


@pytest.mark.slow
def test_a_class_of_the_script_is_audited_on_one_core(tmp_path: Path) -> None:
    call = 'print(dpaudit.audit("audit.toml", cores=2, **OWN).verdict)\n'
    done = script(tmp_path, f"import dpaudit\n{OWN_LAYER}{call}")
    assert (done.stdout, done.stderr) == ("unsupported\n", "")


def my_step(self, x, k, graph, gradient, noise):
    total = gradient.clipped_sum(x, self.clip_norm)
    total = total + noise.gaussian("x", self.sigma * self.clip_norm, total)
    sent = x - 0.1 * total / gradient.batch_size
    return graph.mix(sent), sent


OF_A_FUNCTION = {
    **{"model": "logistic", "n_agents": 4, "graph": "ring", "seed": 3},
    **{"n_rounds": 2, "batch_size": 4, "clip_norm": 1.0, "noise_multiplier": 1.0},
    "claim": {"epsilon": 11.0, "delta": 1e-5},
}


def test_a_function_is_audited_as_a_step() -> None:
    result = dpaudit.audit(my_step, own_arrays(), **OF_A_FUNCTION)
    release = {"family": "gaussian", "noise_multiplier": 1.0, "sampling": "fixed"}
    rate = 4 / min(result.provenance.agent_sizes)
    exact = epsilon([Release(**release, sampling_rate=rate, count=2)], delta=1e-5)
    assert result.claims[0].restated.epsilon.high == pytest.approx(exact.high, rel=1e-9)
    assert result.verdict is Verdict.SUPPORTED
    lines = str(result).splitlines()
    assert lines[0] == "SUPPORTED  my_step: (11, 1e-05)-DP for the whole run, add-remove adjacency"
    assert len(lines) == 5
    assert repr(result) == "<AuditResult: supported>"


def test_a_function_without_noise_is_found() -> None:
    def silent(self, x, k, graph, gradient, noise):
        sent = x - 0.1 * gradient.clipped_sum(x, self.clip_norm) / gradient.batch_size
        return graph.mix(sent), sent

    result = dpaudit.audit(silent, own_arrays(), **OF_A_FUNCTION)
    assert result.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED)


@pytest.mark.parametrize(
    ("step", "options", "line"),
    [
        (my_step, {"n_round": 2}, 'n_round: unknown key (did you mean "n_rounds"?)'),
        (my_step, {"noise_multiplier": -1.0}, "noise_multiplier: "),
        (my_step, {"graph": "rign"}, "graph"),
        (my_step, {"noise_multiplier": None}, "my_step: give either epsilon or noise_multiplier"),
        (my_step, {"defense": own_defense()}, "defense: beside a function; expected an object of"),
        (my_step, {"cores": "two"}, "cores: 'two'; expected a whole number, 1 or more"),
        (my_step, {"device": "gpu"}, 'device = "gpu": no device of torch; expected cpu, cuda'),
        (my_step, {"seed": "a"}, "seed: 'a'; expected a whole number, 0 or more"),
        (my_step, {"claim": [{"epsilon": 2.0}, {"epsilon": 0.0}]}, "claim[2].epsilon: "),
        (lambda *given: given[1], {}, "<lambda> returns a Tensor; expected"),
        (partial(my_step, noise=0), {}, "partial: its arguments are (self, x, k, graph, gradient"),
    ],
)
def test_what_is_wrong_with_a_function_is_a_line(step, options, line: str) -> None:
    with pytest.raises(DpauditError, match=re.escape(line)):
        dpaudit.audit(step, own_arrays(), **{**OF_A_FUNCTION, **options})


def test_arguments_that_a_function_lacks_are_named() -> None:
    def without_self(x, k, graph, gradient, noise):
        return x, x

    expected = "expected without_self(self, x, k, graph, gradient, noise)"
    with pytest.raises(DpauditError, match=re.escape(expected)):
        dpaudit.audit(without_self, own_arrays(), **OF_A_FUNCTION)


def test_tables_that_an_audit_of_a_function_lacks_are_named() -> None:
    given = {key: x for key, x in OF_A_FUNCTION.items() if key not in ("graph", "model")}
    with pytest.raises(dpaudit.DpauditError) as caught:
        dpaudit.audit(my_step, own_arrays(), **given)
    assert [problem.text for problem in caught.value.problems] == [
        "graph: missing; expected a name, as graph='ring'",
        "model: missing; expected a name, as model='logistic'",
    ]
    with pytest.raises(dpaudit.DpauditError, match="data: missing; expected arrays"):
        dpaudit.audit(my_step, **OF_A_FUNCTION)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (DPDPSGD, "DPDPSGD is a defense; expected a config before it"),
        (None, "config: expected a path, a dictionary, an AuditConfig or a function, got NoneType"),
    ],
)
def test_what_is_no_config_is_a_line(config, line: str) -> None:
    with pytest.raises(DpauditError, match=re.escape(line)):
        dpaudit.audit(config)


def test_options_of_a_function_belong_to_no_config() -> None:
    with pytest.raises(DpauditError, match="n_rounds: this is an option of an audit of a function"):
        dpaudit.audit(NAMED, n_rounds=3)
