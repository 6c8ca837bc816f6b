"""Claims that promise next to nothing, which whoever reads their verdict must know."""

from collections.abc import Iterator, Sequence
from math import log

from dpaudit.defense.claim_accounting import claimed_epsilon
from dpaudit.defense.contract import Setting
from dpaudit.files.claim import Claim

ERRORS = 1e-6  # of a guess between two worlds that are equally likely: nothing is hidden any more


def vacuous_notes(claims: Sequence[Claim], setting: Setting) -> Iterator[str]:
    """A warning for each claim that a mechanism which hides nothing would keep to."""
    for claim in claims:
        epsilon = claimed_epsilon(claim)
        if epsilon > -log(ERRORS):
            yield (
                f'Claim "{claim.text}" promises next to nothing: epsilon {epsilon:.3g} allows an '
                f"adversary that takes one world for the other less than once in {1 / ERRORS:,.0f} "
                "guesses."
            )
        of_records = claim.adjacency in ("add-remove", "replace-one")
        n = max(setting.sizes) if of_records else setting.n_agents
        if claim.delta >= 1 / n:
            what = "records of an agent" if of_records else "agents"
            yield (
                f'Claim "{claim.text}" promises little: delta {claim.delta:g} is 1 / {n} or more, '
                f"and whoever publishes one of the {n} {what}, drawn at random, keeps to it."
            )
