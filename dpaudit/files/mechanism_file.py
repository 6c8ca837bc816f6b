"""mechanism.toml: the audit of one function from a value to a noised value."""

from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, ValidationError
from pydantic import model_validator as checked

from dpaudit.errors import Problem
from dpaudit.strict import Strict, Text

from .claim import Claim
from .config import extreme_numbers, read_toml
from .file_problems import FileKey, FileProblem, problems_of, refusal
from .mechanism_values import Dtype, Norm
from .threat import ThreatModel

FLOATS = ("float64", "float32", "float16", "bfloat16")
READER = ThreatModel(name="reader of the output")
MOST_NUMBERS = 10**7  # numbers of one value

Shape = tuple[NonNegativeInt, ...]


class MechanismOptions(Strict):
    """Which function is audited, on which values, and which two values are neighbours."""

    function: Text  # "module:function", from one value to a noised one
    python: Text | None = None  # interpreter of the environment it lives in; None: dpaudit's own
    shape: Shape | tuple[Shape, ...]  # shape of the value, or of each tensor of a list
    dtype: Dtype = "float64"  # dtype of the value
    library: Literal["numpy", "torch"] = "numpy"  # library of the arrays that the function takes
    output_shape: Shape | tuple[Shape, ...] | None = None  # None: that of the value
    output_dtype: Dtype | None = None  # None: that of the value
    sensitivity: PositiveFloat | None = (
        None  # the largest distance of neighbours; None: any two values are neighbours
    )
    norm: Norm = "l2"  # norm of the distance
    records: bool = False  # rows of the value are records, of which one is replaced or removed
    low: float | None = None  # the least number that a value may have
    high: float | None = None  # the largest one
    calls: Annotated[int, Field(gt=0, le=10_000)] = 1  # calls on one value that the claim covers
    runs: Annotated[int, Field(ge=100, le=10**7)] = 20_000  # counted, with each of two inputs
    seconds: PositiveFloat = 600.0  # time limit of the whole audit
    own_randomness: bool = False  # allow a function that seeds do not make reproducible

    @checked(mode="after")
    def _fits(self) -> Self:
        if not 0 < sum(prod(shape) for shape in self.shapes) <= MOST_NUMBERS:
            raise ValueError(f"shape: expected between 1 and {MOST_NUMBERS:,} numbers in a value")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
        if self.records and (self.sensitivity is not None or self.is_list or not self.shape):
            raise ValueError(
                "records = true is one tensor whose rows are records; expected no sensitivity, and "
                "one shape that begins with the number of records"
            )
        if self.dtype == "bfloat16" and self.library == "numpy":
            raise ValueError('dtype = "bfloat16" is of library = "torch"')
        return self

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of tensors."""
        return bool(self.shape) and isinstance(self.shape[0], tuple)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the tensors of the value."""
        return _shapes(self.shape)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the tensors that are returned."""
        return self.shapes if self.output_shape is None else _shapes(self.output_shape)

    @property
    def returns_list(self) -> bool:
        """Whether what is returned is a list of tensors."""
        return self.is_list if self.output_shape is None else len(self.output_shapes) > 1


def _shapes(shape: Any) -> tuple[Shape, ...]:
    return shape if shape and isinstance(shape[0], tuple) else (shape,)


class MechanismConfig(Strict):
    """Everything that decides the outcome of the audit of a function."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    mechanism: MechanismOptions
    claim: Annotated[tuple[Claim, ...], Field(min_length=1, max_length=1)]
    threat_model: tuple[ThreatModel, ...] = (READER,)

    @checked(mode="after")
    def _one_reader(self) -> Self:
        if self.threat_model != (READER,):
            raise ValueError(
                "threat_model: whoever reads the output is the adversary; leave it out"
            )
        return self

    @classmethod
    def from_toml(
        cls, path: Path, seed: int | None = None, fix_model: bool = False
    ) -> "MechanismConfig":
        """Read a file; ``seed`` replaces the one in it. There is no model to fix.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        content, text = read_toml(path)
        return cls.from_table({**content, **({} if seed is None else {"seed": seed})}, path, text)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "MechanismConfig":
        """A config that was read and completed before."""
        return cls.model_validate(content)

    @classmethod
    def from_table(
        cls, content: dict[str, Any], path: Path, text: str, at: FileKey = ()
    ) -> "MechanismConfig":
        """The audit written at a key of a TOML file. Raises ConfigError as ``from_toml``."""
        try:
            config = cls.model_validate(content)
        except ValidationError as error:
            raise refusal(path, text, problems_of(error, cls, content), at) from None
        if problems := list(claim_problems(config)):
            raise refusal(path, text, problems, at)
        return config


def claim_problems(config: MechanismConfig) -> list[FileProblem]:
    """Numbers that cannot be meant, and what of the claim no function can be audited for."""
    problems = list(extreme_numbers(config.model_dump()))
    for i, claim in enumerate(config.claim):
        if claim.adjacency not in ("add-remove", "replace-one"):
            said = "a function is audited on single values; expected add-remove or replace-one"
            problems.append((("claim", i, "adjacency"), Problem("DPA047", said)))
        if claim.threat_model is not None:
            said = "whoever reads the output is the adversary; leave threat_model out"
            problems.append((("claim", i, "threat_model"), Problem("DPA006", said)))
    return problems
