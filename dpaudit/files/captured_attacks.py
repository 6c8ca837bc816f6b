"""The attacks that captured.toml may name: on what a program sends, as it sends it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dpaudit.registry import load_plugin
from dpaudit.strict import Strict, Text


class LikelihoodRatio(Strict):
    """Short runs with and without a record, distinguished by the messages of one name alone."""

    name: Literal["likelihood-ratio"]
    message: Text  # its name or call site


class MutualInformation(Strict):
    """How much the messages of a round reveal about whether a record is there: M-NMI."""

    name: Literal["mutual-information"]
    message: Text | None = None  # its name or call site; None: all of the round
    k: PositiveInt = 3  # neighbours
    n_permutations: NonNegativeInt = 99  # of the p-value; 0: none
    n_splits: NonNegativeInt = 20  # of the interval; 0: none


class GradientInversion(Strict):
    """Images from a message that is the gradient of a batch, for each victim in each round."""

    name: Literal["gradient-inversion"]
    message: Text  # its name or call site: one number for each parameter of the model
    model: Annotated[Text, Field(pattern=r"^[^:]+:[^:]+$")]  # "module:Class", or a function
    weights: Path | None = None  # a .safetensors file of the model's state; relative to the file
    weights_message: Text | None = None  # the message that brought them, in the place of a file
    clip_norm: PositiveFloat | None = None  # of each record's gradient, if the program clips it
    value_range: tuple[float, float] | None = None  # of a pixel; None: that of all batches
    options: dict[str, Any] = {}  # of the attack itself, as in audit.toml

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
    LikelihoodRatio | MutualInformation | GradientInversion, Field(discriminator="name")
]
