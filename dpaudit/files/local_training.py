"""What an agent is known to do between the weights that it starts from and those that it sends."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from dpaudit.strict import Strict

Decay = Annotated[float, Field(ge=0, lt=1)]


class LocalTraining(Strict):
    """Local steps of SGD or AdamW as torch takes them, with no moments left from rounds before."""

    optimizer: Literal["sgd", "adamw"]
    learning_rate: PositiveFloat
    momentum: Decay = 0.0  # of sgd
    nesterov: bool = False  # of sgd
    betas: tuple[Decay, Decay] = (0.9, 0.999)  # of adamw
    eps: PositiveFloat = 1e-8  # of adamw
    weight_decay: NonNegativeFloat = 0.0
    epochs: PositiveInt = 1  # passes over the records, in an order of its own each
    shuffled: bool = True  # whether the order differs by pass
    outer_learning_rate: PositiveFloat = 1.0  # rate of the step that replaces the weights
    outer_momentum: Decay = 0.0  # Nesterov's, kept from round to round as DiLoCo does

    @model_validator(mode="after")
    def _one_optimizer(self) -> Self:
        other = {"sgd": {"betas", "eps"}, "adamw": {"momentum", "nesterov"}}[self.optimizer]
        if given := sorted(other & self.model_fields_set):
            raise ValueError(f'{given[0]} is no option of optimizer = "{self.optimizer}"')
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    @property
    def has_outer_step(self) -> bool:
        """Whether the weights that are sent are not simply those after the local steps."""
        return self.outer_momentum > 0 or self.outer_learning_rate != 1

    def reach(self, n_steps: int) -> float:
        """How far so many steps go along a gradient of length 1 that stays the same.

        Of sgd without decay: eta sum_s (1 + mu + ... + mu^(s-1)), and one term more of Nesterov's.
        AdamW goes eta in each coordinate at a step, whatever the gradient's size.
        """
        if self.optimizer == "adamw":
            return self.learning_rate * n_steps
        velocity, total = 0.0, 0.0
        for _ in range(n_steps):
            velocity = self.momentum * velocity + 1
            total += 1 + self.momentum * velocity if self.nesterov else velocity
        return self.learning_rate * total
