"""The jobs of an audit: training each world, and every attack by every adversary."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from dpaudit.attack.contract import Bench, Measurement
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.scenario import Scenario, run_scenario
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.threat import ThreatModel
from dpaudit.progress import OnProgress
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import Recording, train

WORLDS = ("defense", "no-defense")


@dataclass(frozen=True)
class Experiment:
    """One measurement for one adversary."""

    attack_index: int
    attack_name: str
    measurement: Measurement
    threat_model: ThreatModel

    @property
    def name(self) -> str:
        who = "".join(c if c.isalnum() else "-" for c in self.threat_model.name)
        return f"{self.attack_index:02d}-{self.attack_name}-{who}"


class Prepared(NamedTuple):
    """Everything that a config determines before the first round."""

    learned: LoadedProblem
    setting: Setting
    defenses: dict[str, Defense]  # by world
    attacks: tuple[ReconstructionAttack | Measurement, ...]
    streams: Streams
    notes: tuple[str, ...]  # what a reader must know before any number


def train_world(prepared: Prepared, run: RunDirectory, world: str, on_progress: OnProgress) -> None:
    """Train one world; its curve and the recorded rounds are left in the run directory."""

    def on_round(done: int, total: int) -> None:
        on_progress(f"training, {world}", done, total)

    with _overflow_in_a_line(f"training, {world}"):
        curve = train(
            prepared.defenses[world],
            prepared.learned.problem,
            prepared.setting,
            prepared.streams,
            recording_for(prepared),
            run,
            world,
            on_round,
        )
    run.write_text(f"findings/curve-{world}.json", curve.model_dump_json())


def run_attack(
    config: AuditConfig,
    prepared: Prepared,
    run: RunDirectory,
    job: Scenario | Experiment,
    on_progress: OnProgress,
) -> None:
    """One attack by one adversary; its findings are left in the run directory."""

    def on_step(done: int, total: int) -> None:
        on_progress(f"attack {job.name}", done, total)

    problem, setting, streams = prepared.learned.problem, prepared.setting, prepared.streams
    if isinstance(job, Scenario):
        assert isinstance(problem, Classification)  # the others were refused
        defense = prepared.defenses[job.world]
        findings = run_scenario(job, defense, problem, setting, streams, run, on_step)
    else:
        own = streams.numpy("measurement", job.name).integers(2**62).item()
        bench = Bench(
            problem,
            setting,
            prepared.defenses["defense"],
            config.claim,
            Streams(own, streams.device),
            run,
        )
        with _overflow_in_a_line(f"attack {job.name}"):
            findings = job.measurement.measure(bench, job.threat_model, on_step)
    run.write_json(f"findings/{job.name}.json", [f.model_dump(mode="json") for f in findings])


@contextmanager
def _overflow_in_a_line(what: str) -> Iterator[None]:
    """Numbers too large to compute with are the config's doing, and said as such."""
    try:
        yield
    except (OverflowError, RuntimeError) as error:
        if not isinstance(error, OverflowError) and "overflow" not in str(error):
            raise
        raise RunError(
            f"{what}: numbers exceed what float32 holds; lower defense.clip_norm, learning_rate or "
            "the noise"
        ) from None


def jobs_of(config: AuditConfig, prepared: Prepared) -> Iterator[Scenario | Experiment]:
    """Every attack by every adversary it is meant for."""
    for i, attack in enumerate(prepared.attacks):
        adversaries = [
            model
            for model in config.threat_model
            if attack.threat_models is None or model.name in attack.threat_models
        ]
        if isinstance(attack, ReconstructionAttack):
            yield from _scenarios(config, i, attack, adversaries)
        else:
            for model in adversaries[: None if attack.per_threat_model else 1]:
                yield Experiment(i, config.attack[i].name, attack, model)


def _scenarios(
    config: AuditConfig, i: int, attack: ReconstructionAttack, adversaries: list[ThreatModel]
) -> Iterator[Scenario]:
    """A reconstruction on both worlds, at each batch size.

    Poisson batches vary in size, so those are attacked in probes of exactly the expected size.
    """
    training = config.defense.options["batch_size"]
    varies = config.defense.options["sampling"] == "poisson"
    sizes = dict.fromkeys(training if b == "training" else b for b in attack.batch_sizes)
    for threat_model in adversaries:
        for size in sizes:
            for world in WORLDS:
                is_probe = varies or size != training
                name = config.attack[i].name
                yield Scenario(i, name, attack, threat_model, world, size, is_probe)


def reconstructions_of(prepared: Prepared) -> list[ReconstructionAttack]:
    """The attacks that read the transcript of the training."""
    return [attack for attack in prepared.attacks if isinstance(attack, ReconstructionAttack)]


def recording_for(prepared: Prepared) -> Recording:
    """Which messages the attacks need of which rounds, and at which other batch sizes."""
    defense = prepared.defenses["defense"]
    training = defense.batch_size
    messages: dict[int, set[str]] = {}
    probes: dict[int, set[int]] = {}
    for attack in reconstructions_of(prepared):
        for k in attack.rounds:
            for name, offsets in defense.observables[attack.message].needs.items():
                for offset in offsets:
                    messages.setdefault(k + offset, set()).add(name)
            sizes = (training if b == "training" else b for b in attack.batch_sizes)
            probes.setdefault(k, set()).update(
                size for size in sizes if size != training or defense.sampling == "poisson"
            )
    return Recording(
        {k: frozenset(names) for k, names in messages.items() if k > 0},
        {k: frozenset(sizes) for k, sizes in probes.items()},
    )
