"""Which links there are in a run, and what that leaves an adversary that taps some of them."""

from collections.abc import Iterator, Sequence

from dpaudit.defense.contract import Defense
from dpaudit.defense.view import seen_links
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.options import GraphOptions
from dpaudit.files.result import Note
from dpaudit.files.threat import Link, ThreatModel
from dpaudit.graphs.graph import Network


def links_of(network: Network, n_rounds: int) -> frozenset[Link]:
    """(sender, receiver) of every link of some round of the run."""
    graphs = network.graphs[: min(network.period, n_rounds)]
    return frozenset(link for graph in graphs for link in graph.links)


def with_regions(config: AuditConfig, network: Network, n_rounds: int) -> AuditConfig:
    """The config with the links of each region that an adversary reads: of all rounds together.

    Of the graph without weather, which takes no link away for good.
    """
    if all(model.region is None for model in config.threat_model):
        return config
    there = links_of(network.calm, n_rounds)
    models = tuple(model.within(there) for model in config.threat_model)
    return config.model_copy(update={"threat_model": models})


def reads_nothing(threat_model: ThreatModel, network: Network, n_rounds: int) -> bool:
    """Whether no link of any round of the run is among those that the adversary reads.

    An adversary with a final model needs none.
    """
    if threat_model.has_final_model:
        return False
    graphs = network.graphs[: min(network.period, n_rounds)]
    return not any(bool(seen_links(threat_model, g.senders, g.receivers).any()) for g in graphs)


def refuse_absent_links(
    threat_models: Sequence[ThreatModel], graph: GraphOptions, network: Network, n_rounds: int
) -> None:
    """Stops adversaries that tap a link which the graph cannot have.

    A random graph may lack a link by chance, which is no mistake (``absent_notes``).

    Raises:
        ConfigError: one line for each such link, with the links that the sender has.
    """
    there = links_of(network.calm, n_rounds)
    problems = []
    for model in () if graph.is_random else threat_models:
        for sender, receiver in _absent(model, there):
            heard_by = ", ".join(str(j) for i, j in sorted(there) if i == sender) or "nobody"
            when = f" in {n_rounds} rounds" if network.period > 1 else ""
            problems.append(
                f'threat_model "{model.name}": links: the graph {graph.name} has no link {sender} '
                f"-> {receiver}{when}; agent {sender} sends to {heard_by}"
            )
    if problems:
        raise ConfigError("DPA038", "\n".join(problems))


def refuse_waiting(graph: GraphOptions, network: Network, defense: Defense) -> None:
    """Stops a defense whose agents all take a step in every round, where some are to wait.

    Raises:
        ConfigError: it would draw batches that are not accounted.
    """
    if any(g.active is not None for g in network.graphs) and not defense.waits:
        raise ConfigError(
            "DPA039",
            f"graph {graph.name}: some agents wait in some rounds, and in this defense all take a "
            "step in every round; expected another graph",
            "leave churn and stragglers out" if network.weather is not None else "",
        )
    if network.delay and not defense.delays:
        raise ConfigError(
            "DPA039",
            f"graph {graph.name}: delay: some messages are mixed rounds after they were sent, and "
            "a step of this defense mixes those of its own round alone",
            "leave delay out, or take d-psgd, dp-dpsgd, sgp or dyn-d2p",
        )


def absent_notes(
    threat_models: Sequence[ThreatModel], network: Network, n_rounds: int
) -> Iterator[Note]:
    """What a reader must know of adversaries whose links a random graph lacks."""
    there = links_of(network, n_rounds)
    for model in threat_models:
        absent = [f"{sender} -> {receiver}" for sender, receiver in _absent(model, there)]
        if absent:
            left = "reads nothing" if reads_nothing(model, network, n_rounds) else "reads less"
            yield Note(
                "DPA128",
                f'The adversary "{model.name}" {left}: the graph that was drawn has no link '
                f"{', '.join(absent)}.",
            )


def _absent(threat_model: ThreatModel, there: frozenset[Link]) -> list[Link]:
    return [link for link in threat_model.links or () if link not in there]
