"""captured.toml: the audit of a program that was not written for dpaudit."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from dpaudit.errors import ConfigError, Problem
from dpaudit.registry import load_plugin
from dpaudit.strict import Strict, Text

from .claim import Claim
from .config import MOST, extreme_numbers, read_toml
from .file_problems import FileKey, FileProblem, problems_of, refusal
from .local_training import LocalTraining
from .threat import ThreatModel
from .world import How

Candidate = Literal["present", "scaled", "negated", "zeroed", "other-label"]
LEAST_RUNS = 8  # a half chooses a threshold, and each half has two runs of each side
CANDIDATES: tuple[Candidate, ...] = ("present", "scaled", "negated", "other-label")


class ProgramOptions(Strict):
    """What is run, and where."""

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    folder: Path = Path()  # working folder of the command, relative to the file
    python: Path | None = None  # interpreter of the program's environment; None: dpaudit's own
    ranks: PositiveInt | None = (
        None  # number of processes of a torch.distributed program; None: a simulation
    )
    seconds: Annotated[float, Field(gt=0)] = 120.0  # time limit of one run
    cpu: bool = False  # run a script for CUDA on the CPU


class MessageOptions(Strict):
    """Which messages are the protocol's."""

    ignore: tuple[str, ...] = ()  # names or call sites of diagnostic messages
    weights: tuple[str, ...] = ()  # names or call sites that send weights, and not gradients
    round_starts_at: str | None = None
    reductions: Literal["contributions", "sum only", "rows of a padded stack"] = "contributions"


class NoiseOptions(Strict):
    """Which draws are noise."""

    sites: tuple[str, ...] = ()  # names or call sites of noise; empty: all calls of tap.noise


class RecordOptions(Strict):
    """Which agents' records are changed, when, and how records come into a batch."""

    victims: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1,)
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1)] = CANDIDATES
    sampling: Literal["none", "poisson", "fixed"] | None = None  # None: as the recording shows
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        for name in ("victims", "rounds", "candidates"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: {values} names one twice")
        if self.sampling in (None, "none") and self.sampling_rate != 1:
            raise ValueError('sampling_rate belongs to sampling = "poisson" or "fixed"')
        if self.sampling in ("poisson", "fixed") and "sampling_rate" not in self.model_fields_set:
            raise ValueError(f'sampling = "{self.sampling}" needs sampling_rate')
        return self

    def hows(self) -> tuple[How, ...]:
        """All that a record may become, the changes of either adjacency."""
        return tuple(dict.fromkeys(("absent", *self.candidates)))


class CertifyOptions(Strict):
    """Short runs that hold each victim's record or not, at random, which certify a lower bound."""

    runs: NonNegativeInt = 400  # number of short runs; 0: none

    @model_validator(mode="after")
    def _enough_for_both_sides(self) -> Self:
        if 0 < self.runs < LEAST_RUNS:
            raise ValueError(f"runs = {self.runs}; expected 0, or {LEAST_RUNS} at least")
        return self


class LikelihoodRatioOptions(Strict):
    """Short runs with and without a record, distinguished by the messages of one name alone."""

    name: Literal["likelihood-ratio"]
    message: Text  # its name or call site


class MutualInformationOptions(Strict):
    """How much the messages of a round reveal about whether a record is there: M-NMI."""

    name: Literal["mutual-information"]
    message: Text | None = None  # its name or call site; None: all of the round
    k: PositiveInt = 3  # neighbours
    n_permutations: NonNegativeInt = 99  # permutations for the p-value; 0: no p-value
    n_splits: NonNegativeInt = 20  # splits for the interval; 0: no interval


class GradientInversionOptions(Strict):
    """Images from a message that is the gradient of a batch, for each victim in each round."""

    name: Literal["gradient-inversion"]
    message: Text  # its name or call site: one number for each parameter of the model
    model: Annotated[Text, Field(pattern=r"^[^:]+:[^:]+$")]  # "module:Class", or a function
    weights: Path | None = None  # a .safetensors file of the model's state; relative to the file
    weights_message: Text | None = None  # the message that brought them, in the place of a file
    clip_norm: PositiveFloat | None = None  # of each record's gradient, if the program clips it
    value_range: tuple[float, float] | None = None  # range of a pixel; None: that of all batches
    local: LocalTraining | None = None  # steps between weights and message; None: SGD or one step
    options: dict[str, Any] = {}  # options of the attack, as in audit.toml

    def plugin(self, rounds: Sequence[int]) -> Any:
        """The attack itself. Raises ValidationError for its options, ConfigError for itself."""
        asked = {**self.options, "message": self.message, "rounds": rounds}
        return load_plugin("attacks", self.name).model_validate(asked)

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        if self.weights is not None and self.weights_message is not None:
            raise ValueError("give weights or weights_message, or neither for the initial model")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError("value_range: expected the lowest value of a pixel, then the highest")
        return self


CapturedAttack = Annotated[
    LikelihoodRatioOptions | MutualInformationOptions | GradientInversionOptions,
    Field(discriminator="name"),
]


class CapturedConfig(Strict):
    """Everything that decides the outcome of the audit of a program."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    program: ProgramOptions
    messages: MessageOptions = MessageOptions()
    noise: NoiseOptions = NoiseOptions()
    record: RecordOptions = RecordOptions()
    certify: CertifyOptions = CertifyOptions()
    claim: Annotated[tuple[Claim, ...], Field(max_length=MOST)] = ()
    threat_model: Annotated[tuple[ThreatModel, ...], Field(min_length=1, max_length=MOST)] = (
        ThreatModel(name="eavesdropper", kind="external"),
    )
    attack: Annotated[tuple[CapturedAttack, ...], Field(max_length=MOST)] = ()

    @property
    def least_runs(self) -> int:
        """Runs of the program, without short ones, if an agent draws noise once a round.

        Three that share every draw; in each round three for the noise, and one for each change.
        """
        return 3 + len(self.record.rounds) * (3 + len(self.record.hows()) - 1)

    @property
    def only_replaces(self) -> bool:
        """Whether every claim is of one record in the place of another, in batches of one size."""
        is_drawn = self.record.sampling in ("poisson", "fixed")
        kinds = {claim.adjacency for claim in self.claim}
        return kinds == {"replace-one"} and not is_drawn

    @property
    def attack_runs(self) -> int:
        """Runs of the program for gradient inversion: in each round, with noise and without."""
        n = sum(isinstance(attack, GradientInversionOptions) for attack in self.attack)
        return 2 * n * len(self.record.rounds)

    @property
    def weights(self) -> tuple[Path, ...]:
        """The files that attacks read weights from."""
        inversions = (one for one in self.attack if isinstance(one, GradientInversionOptions))
        return tuple(one.weights for one in inversions if one.weights is not None)

    @classmethod
    def from_toml(
        cls, path: Path, seed: int | None = None, fix_model: bool = False
    ) -> "CapturedConfig":
        """Read a file; ``seed`` replaces the one in it. There is no model to fix.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        content, text = read_toml(path)
        return cls.from_table({**content, **({} if seed is None else {"seed": seed})}, path, text)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "CapturedConfig":
        """A config that was read and completed before."""
        return cls.model_validate(content)

    @classmethod
    def from_table(
        cls, content: dict[str, Any], path: Path, text: str, at: FileKey = ()
    ) -> "CapturedConfig":
        """The audit written at a key of a TOML file. Raises ConfigError as ``from_toml``."""
        try:
            config = cls.model_validate(content)
        except ValidationError as error:
            raise refusal(path, text, problems_of(error, cls, content), at) from None
        if problems := list(_problems(config)):
            raise refusal(path, text, problems, at)
        started_in = (path.parent / config.program.folder).resolve()
        python = config.program.python
        if python is not None:  # links are not followed: where it lies makes its environment
            python = Path(os.path.abspath(path.parent / python))
        program = config.program.model_copy(update={"folder": started_in, "python": python})
        attacks = tuple(_with_weights_relative_to(path.parent, one) for one in config.attack)
        return config.model_copy(update={"program": program, "attack": attacks})


def _with_weights_relative_to(folder: Path, attack: CapturedAttack) -> CapturedAttack:
    if not isinstance(attack, GradientInversionOptions) or attack.weights is None:
        return attack
    return attack.model_copy(update={"weights": (folder / attack.weights).resolve()})


def _attack_problems(config: CapturedConfig) -> Iterator[FileProblem]:
    for i, attack in enumerate(config.attack):
        if not isinstance(attack, GradientInversionOptions):
            if not config.certify.runs:
                said = f"{attack.name} is made from short runs; expected certify.runs above 0"
                yield ("attack", i, "name"), Problem("DPA005", said)
            continue
        try:
            attack.plugin(config.record.rounds)
        except ValidationError as error:
            found = problems_of(error, load_plugin("attacks", attack.name), attack.options)
            yield from ((("attack", i, "options", *key), said) for key, said in found)
        except ConfigError as error:
            yield ("attack", i, "name"), error.problems[0]


def _problems(config: CapturedConfig) -> list[FileProblem]:
    problems = [*extreme_numbers(config.model_dump()), *_attack_problems(config)]
    names = [model.name for model in config.threat_model]
    for i, name in enumerate(names):
        if name in names[:i]:
            said = f'another one is called "{name}"'
            problems.append((("threat_model", i, "name"), Problem("DPA005", said)))
    for i, claim in enumerate(config.claim):
        if claim.threat_model is not None and claim.threat_model not in names:
            said = f'no threat model is called "{claim.threat_model}"'
            problems.append((("claim", i, "threat_model"), Problem("DPA006", said)))
        if claim.adjacency not in ("add-remove", "replace-one"):
            said = "a program is audited by its records; expected add-remove or replace-one"
            problems.append((("claim", i, "adjacency"), Problem("DPA047", said)))
        elif claim.adjacency == "replace-one" and len(config.record.candidates) < 2:
            said = "replace-one needs two candidates at least, of which one takes another's place"
            problems.append((("record", "candidates"), Problem("DPA032", said)))
    for i, model in enumerate(config.threat_model):
        if model.drawn is not None:
            said = "agents of a program are not drawn; expected agents"
            problems.append((("threat_model", i, "drawn"), Problem("DPA013", said)))
        if model.region is not None:
            said = "the graph of a program is what it sends; expected links or agents"
            problems.append((("threat_model", i, "region"), Problem("DPA013", said)))
        if model.has_final_model:
            said = "a program is audited by its messages; expected external, curious or colluding"
            problems.append((("threat_model", i, "kind"), Problem("DPA052", said)))
        held = sorted({*model.agents} & {*config.record.victims})
        if held == sorted(config.record.victims):
            said = f"it holds every victim ({held}); there is nobody to protect"
            problems.append((("threat_model", i, "agents"), Problem("DPA051", said)))
    return problems
