"""What a claimant promises, in its own words and in ours."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpaudit.strict import Strict, Text

Positive = Annotated[float, Field(gt=0, strict=True)]  # true is no number
MOST_DELTA = 0.5  # kept even by a mechanism that publishes everything in half of its runs

Scope = Literal["message", "round", "run"]
Adjacency = Literal["add-remove", "replace-one", "function", "agent-identity", "user"]


def measured_change(adjacency: Adjacency) -> Adjacency:
    """The change that sensitivities are measured by: a user's records are bounded one by one."""
    return "add-remove" if adjacency == "user" else adjacency


class Claim(Strict):
    """A privacy promise: (epsilon, delta)-DP, pure epsilon (delta = 0), or mu-GDP.

    epsilon is in nats and covers one message, one round or the whole run (``scope``), for data
    sets that differ as ``adjacency`` says.
    """

    text: Text
    epsilon: Positive | None = None
    delta: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    mu: Annotated[Positive, Field(le=1e6)] | None = None  # its square is computed with
    scope: Scope = "run"
    adjacency: Adjacency = "add-remove"
    threat_model: str | None = (
        None  # the name of a threat model; None: all threat models of the audit
    )

    @model_validator(mode="after")
    def _one_currency(self) -> "Claim":
        if (self.epsilon is None) == (self.mu is None):
            raise ValueError("give either epsilon (with delta) or mu")
        if self.mu is not None and self.delta > 0:
            raise ValueError("delta belongs to epsilon; a claim of mu holds at every delta")
        if self.delta >= MOST_DELTA:
            raise ValueError(
                f"delta = {self.delta:g} promises nothing: to publish every record in half of all "
                f"runs keeps to {MOST_DELTA:g}; expected a delta far below 1 / (number of records)"
            )
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
