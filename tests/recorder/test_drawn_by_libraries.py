"""Draws that SciPy, scikit-learn and torch make for a program, at its lines and of their laws."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.capture.run import Options, capture

BEGINS = """
import numpy as np
from dpaudit_recorder import tap
tap.batch(0, [[1.0]])
tap.send(0, 1, "w", 1.0)
"""
OF_SCIPY = {
    "norm.rvs(0, 2, 3)": ("numpy.normal", (3,), (0.0, 1.0)),  # which SciPy scales itself
    "norm.rvs(0, 2, 3, random_state=3)": ("numpy.normal", (3,), (0.0, 1.0)),
    "norm.rvs(size=3, random_state=np.random.RandomState(3))": ("numpy.normal", (3,), (0.0, 1.0)),
    "norm.rvs(size=3, random_state=np.random.default_rng(3))": ("numpy.normal", (3,), (0.0, 1.0)),
    "norm(0, 2).rvs(4)": ("numpy.normal", (4,), (0.0, 1.0)),
    "laplace.rvs(scale=2, size=5)": ("numpy.laplace", (5,), (0.0, 1.0)),
    "multivariate_normal.rvs(cov=np.eye(3), size=2)": ("numpy.normal", (2, 3), (0.0, 1.0)),
    "multivariate_normal(cov=np.eye(3)).rvs(2)": ("numpy.normal", (2, 3), (0.0, 1.0)),
    "truncnorm.rvs(-2, 2, size=3)": ("numpy.uniform", (3,), (0.0, 1.0)),
    "t.rvs(5, size=3)": ("numpy.standard_t", (3,), ()),
    "check_random_state(None).normal(1, 2, 6)": ("numpy.normal", (6,), (1.0, 2.0)),
    "np.random.multivariate_normal(np.zeros(2), np.eye(2))": ("numpy.normal", (2,), (0.0, 1.0)),
}
OF_TORCH = {
    "nn.init.normal_(torch.zeros(4), 0, 2.0)": ("normal_", (4,), None),
    "nn.init.trunc_normal_(torch.zeros(3), std=0.1)": ("trunc_normal_", (3,), None),
    "dist.Normal(torch.zeros(4), 3.0).sample()": ("normal", (4,), None),
    "dist.Normal(0.0, 3.0).rsample((4,))": ("normal_", (4,), None),
    "dist.Laplace(0.0, 3.0).sample((4,))": ("uniform_", (4,), None),
    "dist.MultivariateNormal(torch.zeros(3), torch.eye(3)).sample()": ("normal_", (3,), None),
    "nn.Linear(2, 2, bias=False)": ("uniform_", (2, 2), "model"),
}


def drawn(imports: str, calls: list[str], folder: Path) -> list:
    """What a program of one call a line draws, in the order of its lines."""
    script = folder / "program.py"
    script.write_text("\n".join([BEGINS + imports, *calls]))
    recording = capture([sys.executable, str(script)], folder / "out", Options(seconds=60))
    return recording.draws


def test_scipy_draws_at_lines_of_the_program(tmp_path: Path) -> None:
    """Each call draws once, from the global state, too; what an import draws is left out."""
    imports = "from scipy.stats import *\nfrom sklearn.utils import check_random_state"
    draws = drawn(imports, list(OF_SCIPY), tmp_path)
    of = [(one.operator, one.shape, one.parameters) for one in draws]
    assert of == list(OF_SCIPY.values())
    lines = [int(one.call_site.removeprefix("program.py:")) for one in draws]
    assert lines == list(range(lines[0], lines[0] + len(OF_SCIPY)))


def test_what_torch_makes_of_numbers_has_its_law(tmp_path: Path) -> None:
    """A call of torch.nn.init is of a model where a layer makes it."""
    imports = "import torch\nfrom torch import nn\nimport torch.distributions as dist"
    draws = drawn(imports, list(OF_TORCH), tmp_path)
    assert [(one.operator, one.shape, one.purpose) for one in draws] == list(OF_TORCH.values())


HOOKED = """
import numpy as np
{early}
from dpaudit.recorder.draws.python_draws import PythonDraws
from dpaudit.recorder.log import Log, Sites

np.random.seed(7)
np.random.normal()  # of two numbers that are drawn together
PythonDraws(Log({folder!r}, 10**6), Sites("."), None).hook_numpy(np.random)
import scipy.stats
print(np.random.normal(), scipy.stats.norm.rvs(), np.random.uniform(), np.random.ranf())
np.random.seed(3)
print(np.random.mtrand._rand.normal(), np.random.get_state()[2], np.random.seed.__module__)
"""
PLAIN = """
import numpy as np
np.random.seed(7)
first, *drawn = np.random.normal(size=3)
print(*drawn, np.random.uniform(), np.random.ranf())
np.random.seed(3)
print(np.random.normal(), np.random.get_state()[2], np.random.seed.__module__)
"""


@pytest.mark.parametrize("early", ["", "import scipy.stats"], ids=["later", "before"])
def test_the_global_state_goes_on_where_it_was(early: str, tmp_path: Path) -> None:
    """And SciPy's distributions draw from it, whenever they were made."""
    hooked = HOOKED.format(early=early, folder=str(tmp_path))
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for code in (hooked, PLAIN)
    ]
    assert outputs[0].stdout == outputs[1].stdout
    [log] = tmp_path.glob("*.log")
    assert log.read_text().count('"kind": "drawn"') == 5
