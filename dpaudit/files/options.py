"""Graphs and partitions as an audit file writes them: a name, and beside it that one's options.

Nothing here imports torch, so that a configuration is checked before anything heavy is loaded.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dpaudit.errors import ConfigError, nearest
from dpaudit.strict import Strict

Probability = Annotated[float, Field(gt=0, le=1)]


def _is_calm(value: float) -> bool:
    return value == 0


# of a kind of weather: one that is 0 is left out of results, so that they are as without it
Chance = Annotated[float, Field(ge=0, lt=1, exclude_if=_is_calm)]
Rounds = Annotated[NonNegativeInt, Field(exclude_if=_is_calm)]


class _Graph(Strict):
    is_random: ClassVar[bool] = False

    @property
    def is_redrawn(self) -> bool:
        """Whether it is drawn anew in every round."""
        return False

    lazy: bool = False  # use (I + W) / 2, so that no eigenvalue of a symmetric W is negative
    loss: Chance = 0.0  # probability that a link loses what is sent on it, in each round
    delay: Rounds = 0  # rounds that a link takes at most; each link's own is drawn once, from 0 on
    churn: Chance = 0.0  # probability that an agent is absent, in each round
    stragglers: Chance = 0.0  # probability that a present agent skips its step, in each round

    @property
    def has_weather(self) -> bool:
        """Whether messages are lost or late, or agents absent or slow."""
        return bool(self.loss or self.delay or self.churn or self.stragglers)

    def never_arrives(self, n_rounds: int) -> str | None:
        """What is wrong with a delay that is as long as a run or longer; None: it is not."""
        if self.delay < max(1, n_rounds):
            return None
        return (
            f"messages take up to {self.delay} rounds in a run of {n_rounds}, and such a message "
            f"never arrives; expected a delay of at most {n_rounds - 1}"
        )


class FixedGraph(_Graph):
    """A graph that the number of agents determines."""

    name: Literal[
        "ring",
        "directed-ring",
        "bipartite",
        "hub2",
        "complete",
        "exponential",
        "half-exponential",
        "path",
        "star",
    ]


class DOutGraph(_Graph):
    """Every agent sends to the next d - 1 on a circle."""

    name: Literal["d-out"] = "d-out"
    d: Annotated[int, Field(ge=2)] = 2  # the agent itself counts as one of the d


class ErdosRenyiGraph(_Graph):
    """Every pair of agents is linked with the same probability."""

    is_random: ClassVar[bool] = True

    name: Literal["erdos-renyi"] = "erdos-renyi"
    p: Probability = 0.1
    redrawn: bool = False  # draw the graph in every round; a single round need not be connected

    @property
    def is_redrawn(self) -> bool:
        return self.redrawn


class PairwiseGraph(_Graph):
    """One random agent averages with one of its neighbours in another graph, in every round."""

    is_random: ClassVar[bool] = True

    name: Literal["pairwise"] = "pairwise"
    among: Literal["complete", "ring", "bipartite", "path", "star"] = "complete"

    @property
    def is_redrawn(self) -> bool:
        return True


class ServerGraph(_Graph):
    """Agent 0 is a server without data; in every round it averages what some of the others send."""

    is_random: ClassVar[bool] = True

    name: Literal["server"] = "server"
    participation: Probability = (
        1.0  # share of the other agents that take part, drawn in every round
    )

    @property
    def is_redrawn(self) -> bool:
        return self.participation < 1


class RegularGraph(_Graph):
    """Every agent has k neighbours, drawn at random."""

    is_random: ClassVar[bool] = True

    name: Literal["k-regular"] = "k-regular"
    k: Annotated[int, Field(ge=2)] = 4


class PowerLawGraph(_Graph):
    """Each agent links to m earlier ones, with a chance in proportion to the links they have."""

    is_random: ClassVar[bool] = True

    name: Literal["power-law"] = "power-law"
    m: Annotated[int, Field(ge=1)] = 3  # links that an agent brings; some end up with far more


class UniformOutGraph(_Graph):
    """Every ordered pair is an edge with the same probability; uniform weights at the sender."""

    is_random: ClassVar[bool] = True

    name: Literal["uniform-out"] = "uniform-out"
    p: Probability = 0.5


class SensorOptions(Strict):
    """Sensor fusion: what each agent measures of how many unknowns."""

    m: PositiveInt = 3  # measurements of each agent
    p: PositiveInt = 2  # unknowns, d
    scale: PositiveFloat = 1.0  # entries of M_i are uniform on [0, scale]


class TextOptions(Strict):
    """How text is cut into records: which tokens, how many different ones, how many in a record."""

    tokens: Literal["words", "bytes"] = "words"
    vocabulary: Annotated[int, Field(ge=2, le=2**20)] = 1000  # the most frequent words, and <unk>
    length: PositiveInt = 16  # tokens of a record
    labels: Literal["record", "position"] = "record"  # one, or the next token at each position


GraphOptions = Annotated[
    FixedGraph
    | DOutGraph
    | ErdosRenyiGraph
    | RegularGraph
    | PowerLawGraph
    | UniformOutGraph
    | PairwiseGraph
    | ServerGraph,
    Field(discriminator="name"),
]


class EvenPartition(Strict):
    """Equal parts of one random order; "interleaved" deals its records out, one to each agent."""

    kind: Literal["even", "interleaved"] = "even"


class DirichletPartition(Strict):
    """Every class is spread over the agents by its own draw from Dir(alpha).

    "dirichlet-equal": every agent has its own mix of classes from Dir(alpha), and all hold equally
    many.
    """

    kind: Literal["dirichlet", "dirichlet-equal"]
    alpha: PositiveFloat


class ByClassPartition(Strict):
    """The records in order of their class, cut in equal shards; every agent holds some shards."""

    kind: Literal["by-class"] = "by-class"
    shards: PositiveInt = 2  # per agent


class SubsetPartition(Strict):
    """Agents drawn at random hold equal parts; the others hold nothing, and pass messages on."""

    kind: Literal["subset"] = "subset"
    holders: PositiveInt  # agents that hold records


PartitionOptions = Annotated[
    EvenPartition | DirichletPartition | ByClassPartition | SubsetPartition,
    Field(discriminator="kind"),
]

_GRAPH: TypeAdapter[GraphOptions] = TypeAdapter(GraphOptions)
_PARTITION: TypeAdapter[PartitionOptions] = TypeAdapter(PartitionOptions)


def graph_options(name: str, **options: Any) -> GraphOptions:
    """The options of the graph of this name; those not given have their defaults.

    Raises:
        ConfigError: no such graph, or not an option of it, or a value out of range.
    """
    return _checked(_GRAPH, f'graph "{name}"', {"name": name, **options})


def partition_options(kind: str, **options: Any) -> PartitionOptions:
    """The options of the partition of this kind; those not given have their defaults.

    Raises:
        ConfigError: no such partition, or not an option of it, or a value out of range.
    """
    return _checked(_PARTITION, f'partition "{kind}"', {"kind": kind, **options})


def _checked(adapter: TypeAdapter[Any], what: str, value: dict[str, Any]) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        lines = (f"{what}: {_problem(detail)}" for detail in error.errors())
        raise ConfigError("DPA005", "\n".join(lines)) from None


def _problem(detail: ErrorDetails) -> str:
    if detail["type"] == "union_tag_invalid":
        known = detail["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"there is none{nearest(detail['ctx']['tag'], known)}; known: {', '.join(known)}"
    return ": ".join([*map(str, detail["loc"][1:]), detail["msg"]])
