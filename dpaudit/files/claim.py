"""What a claimant promises, in its own words and in ours."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from dpaudit.strict import Strict

Scope = Literal["message", "round", "run"]
Adjacency = Literal["add-remove", "replace-one", "function", "agent-identity", "user"]


class Claim(Strict):
    """A privacy promise: (epsilon, delta)-DP, pure epsilon (delta = 0), or mu-GDP.

    epsilon is in nats and covers one message, one round or the whole run (``scope``), for data
    sets that differ as ``adjacency`` says.
    """

    text: str = Field(min_length=1)
    epsilon: PositiveFloat | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    mu: PositiveFloat | None = None
    scope: Scope = "run"
    adjacency: Adjacency = "add-remove"
    threat_model: str | None = None  # a threat model's name; None: every one of the audit

    @model_validator(mode="after")
    def _one_currency(self) -> "Claim":
        if (self.epsilon is None) == (self.mu is None):
            raise ValueError("give either epsilon (with delta) or mu")
        return self

    def sentence(self) -> str:
        """The promise in one line."""
        if self.mu is not None:
            promise = f"{self.mu:g}-GDP"
        elif self.delta == 0:
            promise = f"pure {self.epsilon:g}-DP"
        else:
            promise = f"({self.epsilon:g}, {self.delta:g})-DP"
        covers = {"run": "the whole run", "round": "each round", "message": "each message"}
        return f"{self.text}: {promise} for {covers[self.scope]}, {self.adjacency} adjacency"
