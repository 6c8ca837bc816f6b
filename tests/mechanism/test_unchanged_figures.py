"""Every mechanism of the zoo: its claim, its epsilon, and what it returns for a seed."""

from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.accounting import gaussian_epsilon
from dpaudit.mechanism.function import FunctionHere, kept_randomness
from dpaudit.mechanism.neighbours import SCALES, NeighbouringInputs
from dpaudit.mechanism.source import from_python
from dpaudit.mechanism.zoo import discrete, updates
from dpaudit.mechanism.zoo.entries import ZooEntry, clipped, discrete_epsilon, randomised_response
from dpaudit.mechanism.zoo.run import zoo
from tests.pinned import hold

ZOO = zoo()
NAMES = sorted({entry.name for entry in ZOO})
LENGTHS = (0.3, 2.6, 40.0)


def figures(entry: ZooEntry) -> list[float]:
    """Its epsilons, and a number for what it returns at each length and seed."""
    asked = {"function": "a:b", **entry.options}
    claim = {"text": "a", "epsilon": entry.claimed, "delta": entry.delta}
    content = {"mechanism": asked, "claim": [{**claim, "adjacency": entry.adjacency}]}
    config = from_python(content).mechanism
    neighbours = NeighbouringInputs(config, entry.adjacency, 0)
    n, found = len(neighbours.directions[0].flat), []
    with kept_randomness():
        function = FunctionHere(entry.function, config)
        for length in LENGTHS:
            flat = np.cos(1.5 * np.arange(n) ** 2)
            value = neighbours.value(length * flat / np.linalg.norm(flat))
            out = function.in_turn([value], 8, range(8))[:, 0]
            found.append(float(np.cos(out).ravel() @ np.sin(1.0 + np.arange(out.size))))
    return [entry.claimed, entry.epsilon, entry.delta, *found]


def test_a_mechanism_is_a_value_and_noise_of_its_scale() -> None:
    """Scales by the closed forms of their epsilons."""
    of = {(e.name, e.mistake, e.claimed): e for e in ZOO}
    for claimed in (0.9, 3.0):
        analytic = of[("Gaussian, analytic", "", claimed)]
        classical = of[("Gaussian, classical", "", claimed)]
        assert analytic.epsilon == pytest.approx(claimed, rel=1e-6)
        scale = 2 * sqrt(2 * log(1.25e5)) / claimed
        assert classical.epsilon == pytest.approx(gaussian_epsilon(1e-5, 2 / scale))
        np.random.seed(1)
        drawn = classical.function(np.zeros(16))
        assert drawn == pytest.approx(scale * np.random.RandomState(1).normal(size=16))


def test_values_are_clipped_to_their_norm() -> None:
    assert clipped(np.array([3.0, 4.0]), 2.5).tolist() == [1.5, 2.0]
    assert clipped(np.array([0.3, 0.4])).tolist() == [0.3, 0.4]
    assert clipped(np.zeros(2)).tolist() == [0.0, 0.0]
    found = updates.per_record(np.array([[3.0, 4.0], [0.3, 0.4]]))
    assert found == pytest.approx([0.9, 1.2])


def test_a_true_answer_has_these_odds() -> None:
    assert randomised_response(0.75, 2) == pytest.approx(log(3))
    assert randomised_response(0.5, 8) == pytest.approx(log(7))


def test_epsilon_at_delta_is_where_the_excess_is_delta() -> None:
    p, q = np.array([0.1, 0.3, 0.6]), np.array([0.2, 0.3, 0.5])
    epsilon = discrete_epsilon(p, q, 0.05)
    excess = max((np.maximum(a - exp(epsilon) * b, 0)).sum() for a, b in ((p, q), (q, p)))
    assert excess == pytest.approx(0.05)
    assert discrete_epsilon(p, q, 0.2) == 0.0
    two = np.array([0.9, 0.1])
    assert discrete_epsilon(two, two[::-1], 0.1) == pytest.approx(log(8))
    assert discrete_epsilon(np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.0, 0.5]), 0.1) == inf
    assert discrete_epsilon(np.array([0.5, 0.5, 0.0]), np.array([0.3, 0.7, 0.0])) == pytest.approx(
        log(5 / 3)
    )


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_cells_of_rounded_noise_have_its_mass(scale: float) -> None:
    at = np.arange(-4.0, 5.0)

    def laplace(x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, np.exp(x / scale) / 2, 1 - np.exp(-x / scale) / 2)

    found = discrete._laplace_cells(at, scale)
    assert found == pytest.approx(laplace(at + 0.5) - laplace(at - 0.5))
    low, high = np.where(at <= 0, at - 1, at), np.where(at >= 0, at + 1, at)
    assert discrete._truncated_cells(at, scale) == pytest.approx(laplace(high) - laplace(low))
    expected = norm.cdf(high / scale) - norm.cdf(low / scale)
    assert discrete._gaussian_cells(at, scale) == pytest.approx(expected)
    one, other = discrete._cells_of_two(scale)
    assert (one.argmax() - 200, other.argmax() - 200) == (-1, 1)


def test_epsilon_of_a_mean_is_where_its_excess_is_delta() -> None:
    """By numeric integration over the radius of 8 numbers, of one record fewer and of all."""
    scale = 1.0
    found = updates._of_mean(scale)
    wide, narrow = scale / 5, scale / 6
    r = np.linspace(1e-6, 12 * wide, 400_001)
    log_ratio = -8 * log(wide / narrow) + r**2 / 2 * (1 / narrow**2 - 1 / wide**2)
    density = r**7 * np.exp(-(r**2) / (2 * wide**2))
    density /= density.sum()
    for epsilon, above in ((found, True), (found + 2e-3, False)):
        there = log_ratio > epsilon
        excess = (density[there] * (1 - np.exp(epsilon - log_ratio[there]))).sum()
        assert (excess > 1e-5) == above


# fmt: off
EXPECTED: dict[str, list[list[Any]]] = {
    "DP-SGD step": [
        [2.0, 2.0, 1e-05, -3.301369218, -4.26033603, -3.804876151],
    ],
    "DP-SGD step, clip": [
        [2.0, 4.392910875, 1e-05, -3.301369218, -3.981932396, -3.981932396],
        [2.0, inf, 1e-05, -3.301369218, -4.826409861, 5.299281726],
    ],
    "DP-SGD step, mean": [
        [2.0, 6.195, 1e-05, 0.4988854264, 0.4491313216, 0.4572522047],
    ],
    "DP-SGD step, replaced record": [
        [2.0, 2.0, 1e-05, 6.878779207, 1.566859169, 1.387087257],
        [2.0, 4.392910875, 1e-05, -3.301369218, -4.26033603, -3.804876151],
    ],
    "DP-SGD step, sampled, add-remove": [
        [3.534005435, 3.534005435, 1e-05, 5.85287681, 7.462364152, 7.645937093],
    ],
    "DP-SGD step, sampled, replace-one": [
        [4.222615629, 4.222615629, 1e-05, 5.85287681, 7.462364152, 7.645937093],
        [0.9965457022, 4.222604652, 1e-05, 5.85287681, 7.462364152, 7.645937093],
        [0.2678262959, 1.993091404, 1e-05, 6.975159913, 2.491209688, 2.311629559],
    ],
    "DP-SGD step, sparse": [
        [2.0, 2.0, 1e-05, -3.781508227, -7.188649159, -6.977814938],
        [2.0, inf, 1e-05, 1.016611955, 1.823664746, 2.094574782],
    ],
    "Gaussian, absent value": [
        [2.0, 2.0, 1e-05, 6.348636228, 6.763694774, 6.763694774],
    ],
    "Gaussian, analytic": [
        [0.9, 0.9, 1e-05, -6.025253886, -6.115589998, -6.115589998],
        [0.9, 1.935421081, 1e-05, 2.386241, 3.599703364, 3.599703364],
        [3.0, 3.0, 1e-05, 2.367569798, 2.153797492, 2.153797492],
        [3.0, 6.706133223, 1e-05, 5.381850615, 6.289002926, 6.289002926],
    ],
    "Gaussian, classical": [
        [0.9, 0.6692746053, 1e-05, -0.4961148905, -1.555722489, -1.555722489],
        [0.9, 1.432918631, 1e-05, 8.22992007, 9.098041026, 9.098041026],
        [3.0, 2.533269455, 1e-05, -0.3862239425, -0.3642461724, -0.3642461724],
        [3.0, 5.61781654, 1e-05, 6.059722913, 6.844663492, 6.844663492],
        [15.0, 17.37166845, 1e-05, 2.843026376, 3.522770997, 3.522770997],
    ],
    "Gaussian, clip": [
        [2.0, inf, 1e-05, 1.345958712, 5.04533794, -6.916512132],
        [2.0, 10.03549233, 1e-05, 1.345958712, 5.023788741, 2.498418787],
        [2.0, 7.077603805, 1e-05, 1.345958712, 5.04533794, 2.424772381],
        [2.0, 2.0, 1e-05, 1.318181354, 1.318181354, 1.318181354],
        [2.0, 10.03549233, 1e-05, 1.345958712, 4.975745504, 4.975745504],
        [2.0, inf, 1e-05, 1.345958712, 1.955682194, -4.247108297],
    ],
    "Gaussian, cut to integers": [
        [2.0, 9.997244512, 1e-05, 1.543090997, -1.527648508, -1.029146118],
    ],
    "Gaussian, four calls": [
        [2.0, 4.392910875, 1e-05, 1.345958712, 2.424772381, 2.424772381],
        [2.0, 2.0, 1e-05, -6.483325468, -6.537634315, -6.537634315],
    ],
    "Gaussian, generator": [
        [2.0, 2.0, 1e-05, 3.80806336, 4.678225525, 4.678225525],
    ],
    "Gaussian, noise": [
        [2.0, inf, 1e-05, 0.3061944419, 0.1733433268, 0.1733433268],
        [2.0, inf, 1e-05, 3.505329728, 2.506201887, 2.506201887],
        [2.0, inf, 1e-05, 4.664197492, 2.424772381, 2.424772381],
        [2.0, inf, 1e-05, 9.60733021, 8.676474654, 8.676474654],
        [2.0, inf, 1e-05, 0.48259634, 1.748250181, 1.748250181],
        [2.0, inf, 1e-05, 1.395508084, 1.892659053, 1.892659053],
        [2.0, inf, 1e-05, 1.345958712, 2.424772381, 2.424772381],
    ],
    "Gaussian, rounded": [
        [2.0, 2.0, 1e-05, 1.345751218, 2.425057753, 2.425057753],
    ],
    "Gaussian, small": [
        [2.0, 5.721190946, 1e-05, 1.971064016, 1.971064016, 1.971064016],
    ],
    "Gaussian, tensors": [
        [2.0, 2.95358502, 1e-05, 1.345958712, 2.691027623, 2.691027623],
        [2.0, 2.0, 1e-05, 1.345958712, 2.154512591, 2.154512591],
        [2.0, inf, 1e-05, 0.48259634, 2.461542565, -1.401204924],
    ],
    "Gaussian, torch": [
        [2.0, 2.0, 1e-05, -7.306075181, -7.003779952, -7.003780221],
        [2.0, 4.392910875, 1e-05, 5.788276474, 5.478915646, 5.478915538],
    ],
    "Laplace": [
        [1.0, 1.0, 0.0, -5.96240931, 0.2260476329, -6.339567252],
        [1.0, 1.414213562, 0.0, -2.355072809, 3.045511801, -4.899694998],
        [0.5, 2.0, 0.0, -0.4235958252, 3.906587759, -3.371486373],
    ],
    "Laplace, L1 clip": [
        [1.0, 1.0, 0.0, -6.13216724, -6.13216724, -6.13216724],
    ],
    "Laplace, L2 clip": [
        [1.0, 4.0, 0.0, -6.077322165, -4.108723634, -4.108723634],
        [1.0, 1.0, 0.0, 0.1029219653, 0.9217832814, 0.9217832814],
    ],
    "Laplace, cut off": [
        [1.0, inf, 0.0, 1.332724668, -0.3109956699, 0.1475698502],
    ],
    "Laplace, cut to integers": [
        [1.0, 1.693147181, 0.0, 2.144247646, -1.960271261, -0.5719868371],
    ],
    "Laplace, rounded to integers": [
        [1.0, 1.0, 0.0, 1.248323724, -1.207264472, -0.6817227998],
    ],
    "count": [
        [1.0, 1.0, 0.0, 1.248323724, 0.1599890636, 1.142041813],
        [1.0, inf, 0.0, 1.543090997, -0.1962753994, 1.276689903],
    ],
    "discrete Gaussian": [
        [2.011339821, 2.011339821, 1e-05, 0.6252983998, -0.8219100575, -1.488184691],
        [2.011339821, 4.430238055, 1e-05, 2.272694306, -2.120612632, -0.8328438356],
    ],
    "discrete Laplace": [
        [1.0, 1.0, 0.0, 2.004917444, -1.850399005, -0.6272379237],
        [1.0, 2.0, 0.0, 1.81033771, -1.789546277, -1.193261918],
        [1.0, inf, 0.0, 2.004917444, -1.527648508, -0.6272379237],
    ],
    "exponential mechanism": [
        [1.0, 1.0, 0.0, 0.2068106171, 0.2983789072, 0.9256319639],
        [1.0, 2.0, 0.0, 0.2983789072, 0.2983789072, 1.442335559],
        [1.0, 8.0, 0.0, 0.2983789072, 0.9256319639, 0.9423060416],
    ],
    "exponential noise": [
        [1.0, inf, 0.0, 1.688303394, -2.595444929, -2.496396811],
    ],
    "largest number": [
        [1.0, 1.0, 0.0, 1.605775727, 1.371901551, 1.371901551],
        [1.0, 6.0, 0.0, 1.640468313, 1.312361435, 1.312361435],
    ],
    "mean": [
        [1.0, 1.0, 0.0, 1.622766088, 1.521785007, 1.312361435],
        [1.0, 2.0, 0.0, 1.572040802, 1.322036528, 1.074829436],
        [1.0, 6.0, 0.0, 1.54506183, 1.188898949, 0.9137606493],
    ],
    "median": [
        [1.0, inf, 0.0, 1.594030356, 1.44054587, 0.9781503395],
    ],
    "noisy max": [
        [1.0, 1.0, 0.0, -1.358524432, -0.08929838212, 0.9738809193],
        [1.0, 4.0, 0.0, -1.358524432, 0.6552863217, 1.576658406],
        [1.0, 8.0, 0.0, -6.077322165, -0.1802000175, -6.284946217],
        [1.0, inf, 0.0, -1.358524432, -0.08929838212, 0.9738809193],
    ],
    "noisy max, exponential noise": [
        [1.0, 1.0, 0.0, -1.358524432, -0.08929838212, 0.9738809193],
    ],
    "one bit, Duchi et al.": [
        [1.0, 1.0, 0.0, -0.862559471, -0.862559471, -0.862559471],
        [1.0, 16.0, 0.0, -1.067616485, -1.067616485, -1.067616485],
        [4.0, 4.0, 0.0, -0.3562833825, -0.3562833825, -0.3562833825],
    ],
    "quantiser after noise": [
        [1.0, 1.0, 0.0, -1.605404462, -1.867302231, -1.867302231],
    ],
    "quantiser before noise": [
        [1.0, 2.0, 0.0, -1.013415891, -0.7232910922, -0.7232910922],
    ],
    "randomised response": [
        [1.0, 1.0, 0.0, 1.68189105, 0.6949355704, 0.6949355704],
        [1.098612289, 1.098612289, 0.0, 1.68189105, 0.6949355704, 0.6949355704],
        [0.6931471806, 1.098612289, 0.0, 1.68189105, 0.6949355704, 0.6949355704],
        [1.098612289, inf, 0.0, 1.543090997, 0.6949355704, 0.6949355704],
    ],
    "randomised response of 16 bits": [
        [4.0, 4.0, 0.0, 2.770665594, -0.5916730047, -0.4840949707],
        [0.25, 4.0, 0.0, 2.770665594, -0.5916730047, -0.4840949707],
    ],
    "randomised response of 8": [
        [1.0, 1.0, 0.0, 0.7962354401, 2.918353432, -1.487942533],
        [1.0, 2.945910149, 0.0, 1.399012926, 1.243832486, -0.3035335193],
    ],
    "snapping": [
        [1.01, 1.0, 0.0, 1.248323724, -0.5715642989, 0.7170232422],
        [1.01, 3.0, 0.0, 1.533135899, -0.849653957, 0.9049759219],
        [1.01, inf, 0.0, 1.252390783, -0.9653226215, -0.6817227998],
    ],
    "sparse vector, algorithm 1": [
        [1.0, 1.0, 0.0, -0.551880059, 1.119288183, 1.169747824],
    ],
    "sparse vector, algorithm 2": [
        [1.0, 1.0, 0.0, 0.5183771632, 0.4999789235, 1.587749755],
    ],
    "sparse vector, algorithm 3": [
        [1.0, inf, 0.0, 0.7375841635, -1.939324021, -5.031898148],
    ],
    "sparse vector, algorithm 4": [
        [1.0, 12.25, 0.0, 1.906355438, 0.7334718095, -1.655231571],
    ],
    "sparse vector, algorithm 5": [
        [1.0, inf, 0.0, 0.8162767217, 1.583537303, 0.9585865121],
    ],
    "sparse vector, algorithm 6": [
        [1.0, inf, 0.0, 0.3243347883, 1.880798352, 0.5924214739],
    ],
    "staircase": [
        [1.0, 1.0, 0.0, 1.299241923, -0.7209552656, -0.365353948],
        [1.0, 2.0, 0.0, -0.1682206679, -0.7626236811, -0.9960228926],
    ],
    "stochastic rounding": [
        [1.0, inf, 0.0, 0.8337356238, 0.8337356238, 0.8337356238],
    ],
    "sum": [
        [1.0, 1.0, 0.0, 1.604635752, -0.9166464647, 1.276689903],
    ],
    "sum of squares": [
        [1.0, 2.0, 0.0, 2.13706847, -1.547957612, 1.307944898],
    ],
    "top 4": [
        [1.0, 1.0, 0.0, 1.672503351, 1.653034341, 4.99267168],
        [1.0, 8.0, 0.0, 2.754855511, 2.490267286, 2.151119682],
        [1.0, inf, 0.0, 3.089087101, 6.233745495, 0.02290289214],
        [1.0, 1.0, 0.0, -3.697762253, -5.2092027, -0.03525775417],
    ],
    "uniform noise": [
        [0.01, 0.0, 0.05, 0.606647021, 0.5493900468, 0.909363835],
        [0.5, inf, 1e-05, 0.606647021, 0.5493900468, 0.909363835],
    ],
}
# fmt: on


@pytest.mark.parametrize("name", NAMES)
def test_mechanisms_of_the_zoo_stay(name: str) -> None:
    found = [figures(entry) for entry in ZOO if entry.name == name]
    assert len(found) == len(EXPECTED[name])
    for one, expected in zip(found, EXPECTED[name], strict=True):
        hold(one, expected)


def test_names_of_mechanisms_stay() -> None:
    assert sorted(EXPECTED) == NAMES
    assert SCALES.tolist() == pytest.approx([10.0**k for k in range(-3, 7)])
