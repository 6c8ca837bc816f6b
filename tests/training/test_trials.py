"""Many runs as one tensor program: each is a run of its own, none is ever NaN."""

import pytest
import torch
from scipy import stats

from dpaudit.defense.budget import GaussianDefense
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpsgd import DPSGD
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced
from dpaudit.errors import DpauditError
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.trials import run_trials

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds


def block_of(problem, trials, own=2):
    """Its initial model in the float64 of the records."""
    block = problem.for_trials(Streams(1), Streams(own), trials, 0)
    block._start = block._start.double()
    return block


def watched(defense, problem, setting, streams, trials, **options):
    seen = []
    last = run_trials(
        defense, problem, setting, streams, trials, lambda k, round: seen.append(round), **options
    )
    return last, seen


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_trials_gradient_is_that_of_its_own_batch(setting_of, streams, sampling) -> None:
    problem, _ = setting_of("ring", 3)
    trials, b = 4, 5
    oracle = problem.gradient(streams, 1, b, sampling, trials)
    X = torch.randn(trials, 3, problem.gradients.d, dtype=torch.float64)
    holders = torch.tensor([2, 0, 1, 1])
    G, chosen = oracle(X), oracle.clipped_sum(X[:, [0, 1, 2, 0]], 0.7, holders)
    inputs, labels, weights = oracle.batch
    assert len(inputs) == len(labels) == trials * 3
    for t in range(trials):
        for m, i in enumerate([0, 1, 2]):
            row = t * 3 + i
            w = None if weights is None else weights[row][None]
            one = problem.gradients.clipped_sum(
                X[t, m][None], inputs[row][None], labels[row][None], None, 2, w
            )
            torch.testing.assert_close(G[t, m], one[0] / b)
        for m, i in enumerate(holders.tolist()):
            row, x = t * 3 + i, X[t, [0, 1, 2, 0][m]][None]
            w = None if weights is None else weights[row][None]
            one = problem.gradients.clipped_sum(x, inputs[row][None], labels[row][None], 0.7, 2, w)
            torch.testing.assert_close(chosen[t, m], one[0])


def test_batches_of_trials_are_drawn_from_own_records(setting_of, dataset) -> None:
    problem, setting = setting_of("ring", 3)
    trials, b = 300, 6
    batch = problem.batch(Streams(5), 1, b, "fixed", trials)
    inputs = batch.inputs.reshape(trials, 3, b, -1)
    own = [problem._x[problem._held[i][: setting.sizes[i]]].flatten(1) for i in range(3)]
    for i in range(3):
        drawn = (inputs[:, i, :, None] == own[i]).all(dim=-1)  # [trials, b, records]
        assert (drawn.sum(dim=-1) == 1).all()  # each is one of the agent's records,
        assert (drawn.sum(dim=1) <= 1).all()  # and none is drawn twice
        counts = drawn.sum(dim=(0, 1)).double()
        expected = torch.full_like(counts, trials * b / len(own[i]))
        assert stats.chisquare(counts, expected).pvalue > FALSE_FAILURE
    assert len(inputs.flatten(1).unique(dim=0)) == trials


def test_poisson_batches_of_trials_vary_in_size_as_they_should(setting_of) -> None:
    problem, setting = setting_of("ring", 3)
    trials, b = 2_000, 6
    sizes = problem.batch(Streams(6), 1, b, "poisson", trials).weights.view(trials, 3, -1).sum(-1)
    for i, records in enumerate(setting.sizes):
        low, high = (
            stats.binom(trials * records, b / records).ppf(p)
            for p in (FALSE_FAILURE, 1 - FALSE_FAILURE)
        )
        assert low <= sizes[:, i].sum() <= high
        assert sizes[:, i].std() > 1


def test_without_trials_a_batch_is_what_it_always_was(setting_of) -> None:
    problem, _ = setting_of("ring", 3)
    one, several = (problem.batch(Streams(7), 2, 4, "fixed", t) for t in (None, 1))
    assert torch.equal(one.inputs, several.inputs)
    assert problem.gradient(Streams(7), 2, 4).trials is None


def test_models_of_another_number_of_trials_are_refused(setting_of) -> None:
    problem, _ = setting_of("ring", 3)
    oracle = problem.gradient(Streams(7), 2, 4, "fixed", 5)
    with pytest.raises(ValueError, match="models of 4 trials on batches of 5"):
        oracle(torch.zeros(4, 3, problem.gradients.d, dtype=torch.float64))


def test_trials_start_alike_and_then_part(setting_of, streams) -> None:
    problem, setting = setting_of("ring", 4)
    defense = DPSGD(n_rounds=3, batch_size=3)
    block, other = block_of(problem, 6), block_of(problem, 6, own=3)
    state, seen = watched(defense, block, setting, streams, 6)
    assert torch.equal(block.initial(streams, 6), other.initial(Streams(9), 6))
    assert (block.initial(streams, 6) == block.initial(streams, 6)[0]).all()
    assert len(seen) == 3
    assert len(defense.models(state).flatten(1).unique(dim=0)) == 6


@pytest.mark.parametrize("name", ["sensitivity-reduced", "dp-dgd", "correlated-randomness"])
def test_trials_are_runs_of_their_own(streams, name, monkeypatch) -> None:
    """Against one run after the other, each with its coefficients and a tape of its noise."""
    tape: dict[tuple[int, str], torch.Tensor] = {}
    playing: list[int] = []

    class Taped(Noise):
        def gaussian(self, message, std, like):
            return self._played(message, lambda: Noise.gaussian(self, message, std, like))

        def laplace(self, message, scale, like):
            return self._played(message, lambda: Noise.laplace(self, message, scale, like))

        def _played(self, message, draw):
            key = (self._round, message)
            if playing:
                return tape[key][playing[-1]]
            return tape.setdefault(key, draw())

    monkeypatch.setattr("dpaudit.training.trials.Noise", Taped)
    problem = SensorFusion.draw(streams, 3, m=2, p=2, trials=4)
    setting = Setting(build_graph("complete", 3), (1,) * 3, 2)
    defense = load_plugin("defenses", name)(n_rounds=4)
    together, _ = watched(defense, problem, setting, streams, 4)
    X = problem.initial(streams, 4)
    for t in range(4):
        playing.append(t)
        alone = SensorFusion(problem.M[t], problem.v[t], problem.omega)
        monkeypatch.setattr(SensorFusion, "initial", lambda self, streams, trials, t=t: X[t])
        last, _ = watched(defense, alone, setting, streams, None)
        torch.testing.assert_close(defense.models(together)[t], defense.models(last))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_no_trial_is_ever_nan(streams, dtype) -> None:
    """5,000 trials of 1,000 rounds draw 1.5e7 numbers; float32 uniform_ gives -1 in 2^24 of them."""
    drawn = SensorFusion.draw(streams, 3, m=1, p=1, scale=10.0, trials=5_000)
    problem = SensorFusion(drawn.M.to(dtype), drawn.v.to(dtype), drawn.omega.to(dtype))
    setting = Setting(build_graph("complete", 3), (1,) * 3, 1)
    defense = SensitivityReduced(n_rounds=1_000).calibrate(setting)
    bad = torch.zeros((), dtype=torch.bool)

    def watch(k, round):
        bad.logical_or_(~round.sent["z"].payload.isfinite().all())

    state = run_trials(defense, problem, setting, streams, 5_000, watch)
    assert state.X.dtype == dtype
    assert not bad
    assert state.X.isfinite().all()


def test_the_tail_of_float32_laplace_noise_turns_no_trial_nan(streams, monkeypatch) -> None:
    """Every round of one trial draws exactly -1, as float32 uniform_ does now and then."""
    uniform = torch.Tensor.uniform_

    def unlucky(self, low=0.0, high=1.0, *, generator=None):
        uniform(self, low, high, generator=generator)
        self[1] = -1.0
        return self

    drawn = SensorFusion.draw(streams, 3, m=1, p=1, trials=3)
    problem = SensorFusion(drawn.M.float(), drawn.v.float(), drawn.omega.float())
    setting = Setting(build_graph("complete", 3), (1,) * 3, 1)
    defense = SensitivityReduced(n_rounds=20).calibrate(setting)
    monkeypatch.setattr(torch.Tensor, "uniform_", unlucky)
    _, seen = watched(defense, problem, setting, streams, 3)
    assert all(round.sent["z"].payload.isfinite().all() for round in seen)


def test_only_the_victims_measurements_are_drawn_anew(streams) -> None:
    problem = SensorFusion.draw(streams, 3, m=2, p=2, scale=5.0)
    block = problem.for_trials(Streams(1), Streams(2), 2_000, 1)
    for i in (0, 2):
        assert torch.equal(block.M[:, i], problem.M[i].expand(2_000, 2, 2))
        assert torch.equal(block.v[:, i], problem.v[i].expand(2_000, 2))
    assert len(block.M[:, 1].unique(dim=0)) == 2_000
    errors = block.v[:, 1] - block.M[:, 1] @ problem.truth
    assert stats.kstest(errors.flatten(), "norm").pvalue > FALSE_FAILURE
    assert stats.kstest(block.M[:, 1].flatten() / 5, "uniform").pvalue > FALSE_FAILURE
    with pytest.raises(DpauditError, match="need measurements that were drawn"):
        SensorFusion(problem.M, problem.v, problem.omega).for_trials(Streams(1), Streams(2), 5, 1)


def test_a_run_can_stop_early(streams) -> None:
    problem = SensorFusion.draw(streams, 3, p=1)
    setting = Setting(build_graph("complete", 3), (1,) * 3, 1)
    _, seen = watched(SensitivityReduced(n_rounds=9), problem, setting, streams, 2, last=4)
    assert len(seen) == 4


OPTIONS = {
    "dpdl": {"noise_multiplier": 1.0},
    "dyn-d2p": {"noise_multiplier": 1.0, "n_rounds": 4},
    "adp-vrsgp": {"noise_multipliers": (1.0,), "allow_outside_theory": True},
    "sensitivity-reduced": {"allow_outside_theory": True},
    "diadsp": {"noise_scale": 1.0},
    "diff-tv-ab": {"noise_scale": 1.0},
    "pp-doagt": {"noise_scale": 1.0},
    "wang-nedic": {"noise_scale": 1.0},
    "wang-nedic-tracking": {"noise_scale": 1.0},
    "xuan-wang": {"noise_scale": 1.0},
}


def test_every_defense_names_its_quantities_and_plays_trials(drawn_setting, own_defense) -> None:
    kind = load_plugin("defenses", own_defense)
    on_ring = kind.needs_graph is None or kind.needs_graph.holds(build_graph("ring", 4))
    problem, setting = drawn_setting("ring" if on_ring else "server", 4)
    agent = setting.holders[0]
    noise = {"noise_multiplier": 1.0} if issubclass(kind, GaussianDefense) else {}
    options = {"n_rounds": 2, "batch_size": 4, **noise, **OPTIONS.get(own_defense, {})}
    defense = kind(**options).calibrate(setting)
    _, seen = watched(defense, block_of(problem, 3), setting, Streams(4), 3, last=2)
    assert defense.private
    for round in seen:
        assert set(round.private) == set(defense.private)
        for quantity in round.private.values():
            assert quantity.shape[:2] == (3, 4)
            own = len(quantity[:, agent].unique(dim=0)) == 3  # each trial has a batch of its own
            assert own or not quantity.any()  # what agents with one model exchange is nothing
        gradients = round.private[next(iter(round.private))]
        assert len(gradients[:, agent].unique(dim=0)) == 3


def test_trials_of_a_perceptron_record_nothing_for_autograd(setting_of, monkeypatch) -> None:
    """Fresh problems, so that what is made in the first round is made in either mode."""
    defense, ends = DPSGD(n_rounds=3, batch_size=5), []
    for differentiates in (False, True):
        problem, setting = setting_of("ring", 4)
        block = block_of(problem, 5)
        if differentiates:
            monkeypatch.setattr(type(block), "differentiates", True)
        ends.append(watched(defense, block, setting, Streams(3), 5)[0].X)
    fast, plain = ends
    assert fast.is_inference()
    assert not plain.is_inference()
    assert torch.equal(fast, plain)


def test_what_autograd_needs_is_left_to_it_in_trials(setting_of) -> None:
    defense, ends = DPSGD(n_rounds=1, batch_size=5), []
    for network in ("lenet", "mlp"):
        problem, setting = setting_of("ring", 3, network)
        assert problem.differentiates == (network == "lenet")
        ends.append(watched(defense, block_of(problem, 2), setting, Streams(3), 2)[0].X)
    assert [X.is_inference() for X in ends] == [False, True]
    X = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    setting.network.at(1).mix(X).sum().backward()  # by the matrix that the trials left behind
    torch.testing.assert_close(X.grad, torch.ones_like(X))
