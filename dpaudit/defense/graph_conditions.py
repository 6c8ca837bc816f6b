"""What methods ask of the graph."""

from collections.abc import Callable
from dataclasses import dataclass

from dpaudit.errors import ConfigError, OutsideTheory
from dpaudit.graphs.graph import Network


@dataclass(frozen=True)
class GraphCondition:
    """A condition on the graph of a run, and how an error says it."""

    says: str  # text after "graph: "
    holds: Callable[[Network], bool]
    by_gossip: bool = False  # whether a graph with a server need not meet it
    error: type[ConfigError] = OutsideTheory
    help: str | None = None  # instead of what such errors say

    def check(self, network: Network) -> None:
        """Raises ``error``: the graph does not meet it."""
        if (self.by_gossip and network.server is not None) or self.holds(network):
            return
        said, help_ = f"graph: {self.says}", self.help
        if network.weather is not None and self.holds(network.calm):
            said += "; without loss, delay, churn and stragglers it is one"
            help_ = "leave them out"
            if issubclass(self.error, OutsideTheory):
                help_ += ", or set allow_outside_theory = true"
        raise self.error("DPA039", said, help_) if help_ else self.error("DPA039", said)


def is_symmetric(network: Network) -> bool:
    """Whether W of every round is symmetric and doubly stochastic."""
    return all(graph.symmetric and graph.doubly_stochastic for graph in network.graphs)


def does_not_vary(network: Network) -> bool:
    """Whether all rounds have one graph; under weather they have not."""
    return network.period == 1


def column_stochastic(method: str) -> GraphCondition:
    """Push-sum divides by weights that are right only where mixing keeps sums over agents."""
    return GraphCondition(
        f"{method} needs mixing matrices whose columns sum to 1, in every round",
        lambda network: all(graph.column_stochastic for graph in network.graphs),
        error=ConfigError,
    )


def doubly_stochastic(method: str, more: str = "", by_gossip: bool = False) -> GraphCondition:
    """W of every round is; ``more`` ends the sentence."""
    return GraphCondition(
        f"{method} needs a doubly stochastic W in every round{more}",
        lambda network: all(graph.doubly_stochastic for graph in network.graphs),
        by_gossip,
    )


def undirected(
    method: str,
    more: str = "",
    by_gossip: bool = False,
    error: type[ConfigError] = OutsideTheory,
    help: str | None = "give it one, such as ring or complete",
) -> GraphCondition:
    """Most gossip methods are analysed on one undirected graph; ``more`` ends the sentence."""
    says = (
        f"{method} needs an undirected graph that does not vary in time, with a symmetric doubly "
        f"stochastic W{more}"
    )
    holds = lambda network: does_not_vary(network) and is_symmetric(network)  # noqa: E731
    return GraphCondition(says, holds, by_gossip, error, help)
