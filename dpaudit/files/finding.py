"""One piece of evidence: its role, the claim that it bears on, and numbers by one vocabulary."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from dpaudit.release import Release
from dpaudit.strict import Strict

from .claim import Adjacency
from .verdict import Verdict

# why a premise was not examined that another one made needless to examine
LEFT_OUT = "left out, because the claim can no longer be supported"
WITHIN_BOUND = 1 + 1e-6  # times a stated bound: what moves so far does not exceed it

Number = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(lambda x: float(x) if x in ("inf", "-inf", "nan") else x),
    PlainSerializer(
        lambda x: x if math.isfinite(x) else str(x), return_type=float | str, when_used="json"
    ),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}),
]
FindingKind = Literal[
    "accounting",
    "sensitivity",
    "empirical-epsilon",
    "reconstruction",
    "membership",
    "mutual-information",
    "topology",
    "control",
]


class Role(StrEnum):
    """What a finding is for."""

    TEST = "test"  # a certified lower bound, compared with a claim
    NOISE_BOUND = "noise-bound"  # a certified bound on the noise, compared with no claim
    NULL_CONTROL = "null-control"  # a test in which there is nothing to find
    POSITIVE_CONTROL = "positive-control"  # a test in which the noise is off
    NOISE = "noise"  # the noise of the real run, compared with what the defense asks for
    EXACT_LEAK = (
        "exact-leak"  # the leak of a view by the algebra of the protocol: exact, or an interval
    )
    WHO_LEARNS_WHAT = "who-learns-what"  # the same for every pair of agents
    WEATHER = "weather"  # the exact leak under many draws of the weather
    REACTING_GRADIENT = "reacting-gradient"  # a certified bound on what third agents relay
    MEASURED = "measured"  # accounting of what was measured on a program
    DECLARED = "declared"  # accounting of what the defense declares
    SENSITIVITY = "sensitivity"  # how far a message moves
    DEPENDENCE = "dependence"  # what else differs between runs on neighbouring data
    ALIGNMENT = "alignment"  # how far noise has to be moved for neighbouring runs to be the same
    RECORDS = "records"  # how often batches hold a record, beside what accounting says
    STATE = "state"  # whether rounds that are played again are the same
    RECONSTRUCTION = "reconstruction"
    RECONSTRUCTED_SHARE = (
        "reconstructed-share"  # the share of targets that were reconstructed, with its bounds
    )
    TEXT_RECOVERY = "text-recovery"  # which tokens of a batch were recovered, and in which order
    MEMBERSHIP = "membership"  # which records a batch held
    INFORMATION = "information"  # how much a view reveals about a private quantity
    BEST_ESTIMATE = "best-estimate"  # the best estimate of that quantity from the view
    TOPOLOGY = "topology"  # which agents share a link


_ROLES: Mapping[FindingKind, tuple[Role, ...]] = {
    "accounting": (
        Role.EXACT_LEAK,
        Role.WHO_LEARNS_WHAT,
        Role.WEATHER,
        Role.MEASURED,
        Role.DECLARED,
    ),
    "sensitivity": (Role.SENSITIVITY, Role.DEPENDENCE, Role.ALIGNMENT),
    "empirical-epsilon": (Role.TEST, Role.NOISE_BOUND, Role.REACTING_GRADIENT),
    "reconstruction": (Role.RECONSTRUCTION, Role.RECONSTRUCTED_SHARE, Role.TEXT_RECOVERY),
    "membership": (Role.MEMBERSHIP,),
    "mutual-information": (Role.INFORMATION, Role.BEST_ESTIMATE),
    "topology": (Role.TOPOLOGY,),
    "control": (
        Role.NULL_CONTROL,
        Role.POSITIVE_CONTROL,
        Role.NOISE,
        Role.RECORDS,
        Role.STATE,
    ),
}
KINDS: Mapping[Role, FindingKind] = {role: k for k, roles in _ROLES.items() for role in roles}


class Name(StrEnum):
    """The vocabulary of metrics; epsilon in nats, mu in standard deviations of the noise."""

    EPSILON = "epsilon"
    CLAIMED_EPSILON = "claimed epsilon"
    DELTA = "delta"
    CLAIMED_MU = "claimed mu"
    LARGEST_MU_OF_A_ROUND = "largest mu of a round"
    MU_OF_MEASURED_ROUNDS = "mu of the measured rounds"
    LARGEST_MU = "largest mu"
    SMALLEST_MU = "smallest mu"
    PAIRS_WITHOUT_NOISE = "pairs without noise"
    MEDIAN_MU = "median mu of the draws"
    MU_OF_95 = "mu of 95% of the draws, at most"
    WORST_MU = "worst mu of the draws"
    MU_OF_ANY_WEATHER = "mu in any weather, at most"

    EPSILON_LOWER_BOUND = "epsilon lower bound"
    EPSILON_OF_DECLARED_SHAPE = "epsilon lower bound, declared shape"
    NOISE_FACTOR = "noise, at most times the declared"
    MU_LOWER_BOUND = "mu lower bound"
    MU_OF_WHOLE_CURVE = "mu lower bound, whole curve"
    MU_OF_PROTOCOL = "mu of the protocol"
    MU_OF_GIVEN_GRADIENTS = "mu of given gradients"
    CONFIDENCE = "confidence"
    P_VALUE = "p-value"
    LOG_WEALTH = "log wealth"
    FALSE_POSITIVES = "false positives"
    FALSE_NEGATIVES = "false negatives"
    GUESSES = "guesses"
    RIGHT_GUESSES = "right guesses"
    CANARIES = "canaries"
    CEILING = "ceiling"
    EXPECTED_BOUND = "expected bound"
    TRIALS_NEEDED = "trials needed"

    MEASURED = "measured"
    STATED_BOUND = "stated bound"
    MEASURED_OVER_STATED = "measured over stated"
    NOISE_OVER_NEEDED = "noise over what the stated bound needs"
    FOUND = "found"
    MOVED_OVER_DECLARED = "noise moved over declared"
    NOISE_OVER_DECLARED = "noise over declared"
    SAMPLING_RATE = "sampling rate"
    DECLARED_RATE = "declared sampling rate"
    ROUNDS = "rounds"
    REAL_ROUNDS = "rounds of the real model"

    MSE = "mse"
    PSNR = "psnr"
    SSIM = "ssim"
    SSIM_OVER_BLIND = "ssim over blind"
    LABEL_ACCURACY = "label accuracy"

    TOKENS_RECOVERED = "tokens recovered"
    SEQUENCES_RECOVERED = "sequences recovered"
    ROUGE_1 = "rouge-1"
    ROUGE_2 = "rouge-2"
    TPR = "true positive rate"
    FPR = "false positive rate"

    AUC = "auc"
    CHANCE_AUC = "auc by chance"
    TPR_AT_0001 = "tpr at 0.1% fpr"
    TPR_AT_001 = "tpr at 1% fpr"
    MATCHED = "matched"
    MATCHED_BLINDLY = "matched blindly"
    THRESHOLD = "threshold (dB)"
    RECONSTRUCTED = "reconstructed"
    RECONSTRUCTED_BLINDLY = "reconstructed blindly, at most"
    CLAIM_ALLOWS = "success that the claim allows"
    ACCOUNTING_ALLOWS = "success that accounting allows"

    INFORMATION = "information"
    M_NMI = "m-nmi"
    CORRELATION = "correlation"
    GAUSSIAN_INFORMATION = "gaussian"
    SELF_INFORMATION = "self-information"
    BASELINE = "baseline"
    VARIANCE_EXPLAINED = "variance explained"
    CAPACITY = "capacity of the noise"
    CAPACITY_FOR_A_NUMBER = "capacity for a number of one record"
    CAPACITY_FOR_PRESENCE = "capacity for the presence of one record"

    LOSS = "loss"
    ACCURACY = "accuracy"
    CONSENSUS_DISTANCE = "consensus distance"


class Column(StrEnum):
    """The vocabulary of series: columns of equal length, for figures."""

    ROUND = "round"
    MU = "mu"
    ADVERSARY = "adversary"
    VICTIM = "victim"
    FALSE_POSITIVE_RATE = "false positive rate"
    FALSE_NEGATIVE_RATE = "false negative rate"
    LEAST_ALLOWED = "least that the claim allows"
    LEVEL = "level"  # largest probability that the certified figure is wrong
    CERTIFIED = "certified epsilon"
    STATED_BOUND = "stated bound"
    INFORMATION = "information"
    LOW = "low"
    HIGH = "high"
    BASELINE = "baseline"
    PRIVATE = "private"
    ESTIMATE = "estimate"
    CHOSEN_RESTART = "chosen restart"  # 1-based, by the attacker's own loss
    ITERATION = "iteration"
    PSNR_AT_LEAST = "psnr at least"
    SHARE = "share"
    BLIND_AT_LEAST = "blind, at least"
    BLIND_AT_MOST = "blind, at most"
    ACCOUNTING_ALLOWS = "accounting allows"
    WITHOUT_PRIOR = "without prior"
    SSIM_AT_LEAST = "ssim at least"
    SSIM_SHARE = "share by ssim"
    SSIM_LOW = "low by ssim"
    SSIM_HIGH = "high by ssim"
    SSIM_BLIND = "blind by ssim, at least"


class Evidence(StrEnum):
    """The vocabulary of evidence: raw numbers that `dpaudit verify` derives figures from."""

    BET_EPSILON = "bet epsilon"  # epsilon that a bet is against
    BET_DELTA = "bet delta"
    BET_PLACE = "bet place"  # place of a bet's threshold among places of scores
    BET_SIDE = "bet side"  # 1: scores above the threshold are in the set; -1: those below
    BET_SHARE = "bet share"  # share that has half of its group's stake; -1: none
    BET_GROUP = "bet group"  # 0: against the claim; 1: against the certified epsilon
    PLACES = "places"  # places of the scores of each pair, many pairs in one number
    N_PLACES = "number of places"
    USE_SIZES = "sizes of uses"  # how far uses of a canary move its channel, as declared
    USES = "uses of each size"
    USE_RATE = "rate of uses"
    SUM = "sum"  # mean score of the canaries that are there, less that of the others
    THERE = "canaries there"
    MEAN_SQUARE = "mean square"  # mean square of the noise in the other channels


def restart_column(i: int) -> str:
    """The column with the attacker's loss of restart i = 1, 2, ..., one row per target."""
    return f"loss of restart {i}"


def claim_column(claim: int) -> str:
    """The column with the share that a claim, by its index, allows."""
    return f"claim {claim} allows"


def canonical(name: str) -> str:
    """A metric's name as the vocabulary spells it ("M_NMI" is "m-nmi"); others as they are."""
    return _SPELT.get(_words(name), name)


def _words(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ")


_SPELT: Mapping[str, str] = {_words(name): name.value for name in Name}


class Metric(Strict):
    """A number, its 95% interval where it is an estimate, and how many cases it rests on.

    ``standard_error`` is that of a mean, which an interval that is cut to a range does not show.
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    n: int | None = None
    standard_error: Number | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval; the value replaces an unknown end."""
        low, high = self.low, self.high
        return self.value if low is None else low, self.value if high is None else high


class Finding(Strict):
    """One piece of evidence. ``title`` and ``notes`` are for people; no code reads them."""

    role: Role
    kind: FindingKind
    title: str
    claim: NonNegativeInt | None = None  # index of a claim in the config; None: no single claim
    attack: str | None = None
    threat_model: str | None = None
    message: str | None = None
    adjacency: Adjacency | None = None  # the adjacency that it compares; None: no single one
    rounds: tuple[int, ...] = ()
    world: Literal["defense", "no-defense", "blind"] | None = None
    batch_size: int | None = None
    metrics: dict[str, Metric] = {}  # keys: Name, or an attack's own names
    # whose composition is the lower end of epsilon ("least"), or the upper one ("most"); of a test,
    # those that its bound of the declared shape assumes
    releases: dict[Literal["least", "most"], tuple[Release, ...]] = {}
    verdict: Verdict | None = None
    void: str | None = None  # why its figures are void; None: they are not
    notes: tuple[str, ...] = ()
    not_examined: tuple[str, ...] = ()  # what it could not examine, and why; verdicts name it
    unconfirmed: tuple[str, ...] = ()  # messages whose declared law of the noise was not confirmed
    artifacts: dict[str, str] = {}  # path of each artifact, relative to the run directory
    series: dict[str, tuple[Number, ...]] = {}  # keys: Column or Name, or an attack's own names
    trace: dict[str, tuple[Number, ...]] = {}  # likewise, by iteration of an attack's search
    # by Evidence: what its figures follow from, for `dpaudit verify`; lists of any length
    evidence: dict[str, tuple[Number, ...]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if KINDS[self.role] != self.kind:
            raise ValueError(f'role "{self.role}" is of kind "{KINDS[self.role]}"')
        for name in self.metrics:
            if canonical(name) != name:
                raise ValueError(f'metric "{name}" is spelt "{canonical(name)}"')
        for name, table in (("series", self.series), ("trace", self.trace)):
            if len({len(column) for column in table.values()}) > 1:
                raise ValueError(f"the columns of {name} differ in length")
        return self

    def value(self, name: str) -> float | None:
        """A metric's value; None where there is no such metric."""
        metric = self.metrics.get(name)
        return None if metric is None else metric.value


def known_releases(
    least: Sequence[Release] | None, most: Sequence[Release] | None
) -> dict[Literal["least", "most"], tuple[Release, ...]]:
    """``Finding.releases`` from the releases of both ends; None: the end is of none."""
    found: dict[Literal["least", "most"], tuple[Release, ...]] = {}
    if least is not None:
        found["least"] = tuple(least)
    if most is not None:
        found["most"] = tuple(most)
    return found
