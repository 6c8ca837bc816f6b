"""What short runs give: tests of the claims, and what the attacks of captured.toml make of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.checkpoint import Checkpoint
from dpaudit.defense.claim_accounting import record_adjacency
from dpaudit.errors import RunError, nearest
from dpaudit.files.captured_attacks import GradientInversion, LikelihoodRatio, MutualInformation
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding
from dpaudit.files.threat import ThreatModel

from .certified import Channel, ShortRuns, certified
from .informed import informed
from .program import Program
from .worlds import Neighbours, OnRun, Worlds


class Asked(NamedTuple):
    """A claim against one adversary."""

    number: int  # its index among the claims
    claim: Claim
    threat_model: ThreatModel


@dataclass(frozen=True)
class Testing:
    """The short runs of an audit: one set for each adjacency that is claimed."""

    config: CapturedConfig
    worlds: Worlds
    asked: Sequence[Asked]

    def findings(
        self, program: Program, counter: Callable[[str, int], OnRun], checkpoint: Checkpoint
    ) -> Iterator[Finding]:
        """Raises RunError if a run fails, or an attack names a message that is not sent."""
        config, k = self.config, self.config.record.rounds[0]
        if not config.certify.runs:
            return
        _refuse_other_names(config, self.worlds.rounds[k])
        claimed = dict.fromkeys(record_adjacency(one.claim) for one in self._tested)
        informing = any(isinstance(one, MutualInformation) for one in config.attack)
        for adjacency in claimed or ({"add-remove": None} if informing else {}):
            on_run = counter("short runs", config.certify.runs + 1)
            runs = ShortRuns(config, self.worlds.replay, self.worlds.rounds[k], adjacency)
            yield from self._of(runs, adjacency, program, on_run, checkpoint.stage(adjacency))

    @property
    def _tested(self) -> list[Asked]:
        """Claims that hold for a record of which it is known whether it is in the batch."""
        sampling = self.worlds.sampling
        known = [one for one in self.asked if sampling.unknown(one.claim) is None]
        return [] if sampling.amplifies else known

    def _of(
        self,
        runs: ShortRuns,
        adjacency: RecordAdjacency,
        program: Program,
        on_run: OnRun,
        checkpoint: Checkpoint,
    ) -> Iterator[Finding]:
        attacks, k = self.config.attack, self.config.record.rounds[0]
        tests = [None, *(one.message for one in attacks if isinstance(one, LikelihoodRatio))]
        told = [one for one in attacks if isinstance(one, MutualInformation)]
        names = dict.fromkeys([*tests, *(one.message for one in told)])
        every = [Channel(model, name) for model in self.config.threat_model for name in names]
        channels = [channel for channel in every if runs.can_test(channel)]
        if not channels:
            return
        played = runs.played(program, channels, on_run, checkpoint)
        for i, claim, model in self._tested:
            for name in dict.fromkeys(tests):
                channel = Channel(model, name)
                if record_adjacency(claim) == adjacency and channel in played:
                    yield certified(i, claim, channel, played[channel], k)
        for attack in told:
            for channel in played:
                if channel.message == attack.message:
                    yield from informed(attack, channel, played[channel], runs)


def _refuse_other_names(config: CapturedConfig, neighbours: Neighbours) -> None:
    names = dict.fromkeys(m.name for p in neighbours.places.values() for m in p.messages)
    for i, attack in enumerate(config.attack, 1):
        if not isinstance(attack, GradientInversion) and attack.message not in (None, *names):
            assert attack.message is not None
            raise RunError(
                "DPA064",
                f'attack[{i}].message: no victim sends "{attack.message}" in round '
                f"{config.record.rounds[0]}{nearest(attack.message, names)}; sent are "
                f"{', '.join(names)}",
            )
