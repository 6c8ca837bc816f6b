"""What a defense's declared releases add up to, for a claim and an adversary."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil, inf, isclose
from typing import NamedTuple

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import Interval, Mechanism, RecordAdjacency, epsilon
from dpaudit.errors import ConfigError, Problem
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel

from .contract import Bracket, Defense, Setting

RESTATED_DELTA = 1e-5  # for claims that name no delta


class AccountedClaim(NamedTuple):
    """Exact accounting of one claim against one threat model, for the agent that is worst off."""

    epsilon: Interval
    delta: float
    victim: int
    assumptions: tuple[str, ...]
    least: Mechanism | None = None  # whose epsilon is the lower end; None: that is of no releases
    most: Mechanism | None = None  # whose epsilon is the upper end


def account_claim(
    claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting
) -> AccountedClaim:
    """The epsilon that the defense's declared releases give, at the claim's delta and scope.

    Only releases of what the claim's adjacency changes may support it. All records of a user are
    accounted at once (``_of_user``). Of an agent in another's place no defense declares a release;
    where its function is what is protected, a record may move it further than that (``_proven``).

    Raises:
        ConfigError: the adversary's agents are all there are, so nobody is left to protect; or the
            claim has no delta, which Gaussian noise needs.
    """
    return _proven(_declared(claim, threat_model, defense, setting), claim, defense)


def worst_off(claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting) -> int:
    """The victim of ``account_claim``, with nothing composed where all agents release the same."""
    first, *others = victims = _victims(threat_model, setting)
    released = _mechanism(defense, setting, threat_model, first)
    alike = len({setting.sizes[victim] for victim in victims}) == 1
    if alike and all(_mechanism(defense, setting, threat_model, v) == released for v in others):
        return first
    return account_claim(claim, threat_model, defense, setting).victim


def account_restated(
    claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting
) -> AccountedClaim:
    """The declared releases of one record, or of one function, over the whole run.

    It is the currency in which claims compare, and supports none. Raises as ``account_claim``.
    """
    restated = claim.model_copy(update={"scope": "run", "adjacency": record_adjacency(claim)})
    return _declared(restated, threat_model, defense, setting)


def _declared(
    claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting
) -> AccountedClaim:
    victims = _victims(threat_model, setting)
    brackets = [
        _of_adjacency(
            claim,
            _mechanism(defense, setting, threat_model, victim),
            defense,
            setting.sizes[victim],
        )
        for victim in victims
    ]
    delta = _delta(claim, brackets)
    worst = range(len(victims)) if claim.scope != "run" else _undominated(brackets)
    candidates = [_composed(brackets[i], claim, delta, victims[i], defense) for i in worst]
    return max(candidates, key=lambda accounted: (accounted.epsilon.low, accounted.epsilon.high))


def _undominated(brackets: Sequence[Bracket]) -> list[int]:
    """The brackets among which is one with the largest epsilon, at any delta, by their indices.

    A release at a lower rate, or under more noise, is a mixture or a noised copy of the other one:
    no epsilon of it is larger (joint convexity and post-processing). Agents that hold more records
    are left out so, of those whose releases differ in nothing else.
    """
    found: list[int] = []
    for i, bracket in enumerate(brackets):
        if not any(_dominates(brackets[j], bracket) for j in found):
            found = [j for j in found if not _dominates(bracket, brackets[j])] + [i]
    return found


def _dominates(one: Bracket, other: Bracket) -> bool:
    """Whether each release of one is that of the other, or at a higher rate or under less noise."""
    ends = zip(one[:2], other[:2], strict=True)
    return all(
        len(mine) == len(yours)
        and all(
            (a.family, a.sampling, a.count, a.clipped) == (b.family, b.sampling, b.count, b.clipped)
            and a.sampling_rate >= b.sampling_rate
            and a.noise_multiplier <= b.noise_multiplier
            for a, b in zip(mine, yours, strict=True)
        )
        for mine, yours in ends
    )


def _of_adjacency(claim: Claim, bracket: Bracket, defense: Defense, n_records: int) -> Bracket:
    """What is released of what the claim's adjacency changes."""
    if claim.adjacency == "user":
        return _of_user(bracket, defense, n_records)
    if defense.protects == "user":
        return _of_one_record(bracket, claim)
    return _as_drawn(bracket, defense, n_records)


def _proven(accounted: AccountedClaim, claim: Claim, defense: Defense) -> AccountedClaim:
    """What of it is proven for the claim's adjacency; nothing released stays nothing for all."""
    low, high = accounted.epsilon
    if high == 0:
        return accounted
    if claim.scope == "message" and len(defense.messages) > 1 and 0 < low < inf:
        together = "the messages of a round are accounted together: no lower end for one of them"
        accounted = accounted._replace(
            epsilon=Interval(0.0, high),
            assumptions=(*accounted.assumptions, together),
            least=None,
        )
        low = 0.0
    if claim.adjacency == "agent-identity":
        low = inf if low == inf else 0.0  # without any noise, agents that differ are told apart
        why = "accounting is of a record, and says nothing of an agent in another's place"
    elif claim.adjacency in ("add-remove", "replace-one") and defense.function_distance():
        why = (
            "what is accounted is a function that changes within the stated distance; a record may "
            "change it by more, so no upper end is proven"
        )
    else:
        return accounted
    return accounted._replace(
        epsilon=Interval(low, inf),
        assumptions=(*accounted.assumptions, why),
        least=accounted.least if low > 0 else None,
        most=None,
    )


def refuse_claims(
    claims: Sequence[Claim],
    threat_models: Sequence[ThreatModel],
    defense: Defense,
    setting: Setting,
    on_records: bool,
) -> None:
    """Stops claims that could not be judged, before anything is run.

    Args:
        on_records: agents learn from records, rather than having one measured function each.

    Raises:
        ConfigError: one line for each claim and reason. Nobody is left to protect, the claim has no
            delta where Gaussian noise needs one, the defense declares nothing to account for, or
            its data and its noise cannot realise the claim's adjacency.
    """
    problems: dict[Problem, None] = {}
    for model in threat_models:
        for claim in (c for c in claims if c.threat_model in (None, model.name)):
            try:
                _refuse(claim, model, defense, setting, on_records)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError.of(problems)


def _refuse(
    claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting, on_records: bool
) -> None:
    victims = _victims(threat_model, setting)
    for victim in victims:  # up to the first that releases anything to the adversary
        bracket = _mechanism(defense, setting, threat_model, victim)
        if releases := (*bracket.least, *bracket.most):
            break
    if claim.delta == 0 and claim.mu is None:  # some other victim may be hidden by Gaussian noise
        _delta(claim, (_mechanism(defense, setting, threat_model, v) for v in victims))
    if not releases and not bracket.assumptions:
        raise ConfigError(
            "DPA048",
            f'claim "{claim.text}": the defense declares no release to "{threat_model.name}", so '
            "there is nothing to account for; its mechanism must list what it releases, or state "
            "as an assumption why that is nothing",
        )
    if not on_records and claim.adjacency in ("add-remove", "replace-one", "user"):
        raise ConfigError(
            "DPA047",
            f'claim "{claim.text}": adjacency "{claim.adjacency}" cannot be realised, for these '
            'agents have no records; expected "function" or "agent-identity"',
        )
    if claim.adjacency == "user" and defense.function_distance() is not None:
        raise ConfigError(
            "DPA047",
            f'claim "{claim.text}": adjacency "user" is of records, and the defense protects an '
            'agent\'s whole function; expected "function"',
        )
    hides_records = any(release.noise_multiplier > 0 for release in releases)
    if claim.adjacency == "function" and hides_records and defense.function_distance() is None:
        raise ConfigError(
            "DPA047",
            f'claim "{claim.text}": adjacency "function" cannot be realised, for the defense '
            'states no gradient_distance; expected "add-remove" or "replace-one"',
        )


def _mechanism(
    defense: Defense, setting: Setting, threat_model: ThreatModel, victim: int
) -> Bracket:
    """What is released to an adversary about one record of the victim.

    A final model is computed from initial models and from what agents send, so that it releases no
    more than all messages do (post-processing). It may hold more, as noise that is drawn for a
    message alone: that is for the exact leak to say, which has the model among its messages.
    """
    if not threat_model.has_final_model:
        return defense.mechanism(setting, threat_model, victim)
    everybody = ThreatModel(name=threat_model.name)
    released = defense.mechanism(setting, everybody, victim)
    said = (
        "the final model is computed from messages, which are accounted in its place; so no lower "
        "end follows"
    )
    return Bracket((), released.most, (*released.assumptions, said))


def _victims(threat_model: ThreatModel, setting: Setting) -> list[int]:
    victims = [i for i in setting.holders if i not in threat_model.agents]
    victims.sort(key=lambda i: i != threat_model.model_of)  # the owner of the model comes first
    if not victims:
        raise ConfigError(
            "DPA051", f'threat_model "{threat_model.name}": no agent is left to attack'
        )
    return victims


def claimed_epsilon(claim: Claim) -> float:
    """The claim as an epsilon at its delta (a mu-GDP claim at delta 1e-5)."""
    if claim.mu is not None:
        return gaussian_epsilon(RESTATED_DELTA, claim.mu)
    assert claim.epsilon is not None
    return claim.epsilon


def claimed_delta(claim: Claim) -> float:
    """The delta at which tests of the claim are held against it."""
    return RESTATED_DELTA if claim.mu is not None else claim.delta


def record_adjacency(claim: Claim) -> RecordAdjacency:
    """Whether the claim's two worlds differ by a record more or by another record."""
    return "replace-one" if claim.adjacency == "replace-one" else "add-remove"


def _of_user(bracket: Bracket, defense: Defense, n_records: int) -> Bracket:
    """What is released of all records of an agent at once, from what is released of one.

    A batch of fixed size B is all the user's in every round, so that its sum moves by B clip norms
    and sampling hides nothing. Of a Poisson batch the number of records is random: all of them at
    most, and no lower end is proven. Batches in turn hold all of them in a run, each at most once
    in a release: all of them move it by as many clip norms at most. What is clipped as a whole
    moves by one clip norm from 0, which it is without any records, however many there are.
    """

    if defense.protects == "user":
        said = "a release is about all records of an agent: the clip is of its whole gradient"
        least, most = (_of_all_records(end, 1) for end in (bracket.least, bracket.most))
        return Bracket(least, most, (*bracket.assumptions, said))
    certain = defense.drawing == "fixed" or (
        defense.drawing == "poisson" and defense.batch_size >= n_records
    )
    n = min(defense.batch_size, n_records) if certain else n_records
    said = f"a user is all records of an agent, {n} of them in a batch" + " at most" * (not certain)
    least = _of_all_records(bracket.least, n) if certain else ()
    return Bracket(least, _of_all_records(bracket.most, n), (*bracket.assumptions, said))


def _of_all_records(mechanism: Mechanism, n: int) -> Mechanism:
    """Releases that ``n`` records enter, about all of them: there is always one in the batch.

    What is clipped as a whole moves by half of its diameter, n clip norms.
    """
    unsampled = {"sampling": "none", "sampling_rate": 1.0, "clipped": "records"}
    return tuple(
        release.model_copy(
            update={**unsampled, "noise_multiplier": release.noise_multiplier * times}
        )
        for release in mechanism
        for times in [2 if release.clipped == "whole" else 1 / n]
    )


def _as_drawn(bracket: Bracket, defense: Defense, n_records: int) -> Bracket:
    """Batches that are drawn of fixed size and declared as Poisson samples, accounted as drawn.

    The record may take the place of its opposite, which moves a sum twice as far. Releases of
    another rate than B / n are not of these batches.
    """
    if defense.drawing != "fixed" or defense.batch_size >= n_records:
        return bracket
    rate = defense.batch_size / n_records

    def drawn(mechanism: Mechanism) -> Mechanism:
        return tuple(
            release.model_copy(update={"sampling": "fixed"})
            if release.sampling == "poisson" and isclose(release.sampling_rate, rate)
            else release
            for release in mechanism
        )

    least, most = drawn(bracket.least), drawn(bracket.most)
    if (least, most) == (bracket.least, bracket.most):
        return bracket
    said = (
        f"batches are {defense.batch_size} of {n_records} records each and are accounted so, where "
        "the defense declares that each record is drawn by itself"
    )
    return Bracket(least, most, (*bracket.assumptions, said))


def _of_one_record(bracket: Bracket, claim: Claim) -> Bracket:
    """What is released of one record, from what is released of a user with all its records.

    One record more may turn the clipped gradient of all of them around, which then moves by twice
    the clip norm; a user with no records has none. No lower end is proven: a batch may not have it.
    A release that is clipped as a whole counts that already.
    """
    turned = 2.0 if record_adjacency(claim) == "add-remove" else 1.0  # replacing counts two anyway
    most = tuple(
        release
        if release.clipped == "whole"
        else release.model_copy(update={"noise_multiplier": release.noise_multiplier / turned})
        for release in bracket.most
    )
    said = "what is clipped is of all records at once, and one of them may turn it around"
    return Bracket((), most, (*bracket.assumptions, said))


def _composed(
    bracket: Bracket, claim: Claim, delta: float, victim: int, defense: Defense
) -> AccountedClaim:
    """Epsilon of the whole run, or of the round with the least noise: at least one release.

    Noise for batches in turn is made for all uses of a record at once.
    """
    least, most, _ = bracket
    if claim.scope != "run":
        least = () if defense.cyclic else _least_noise(least, 1)
        most = _least_noise(most, _in_a_round(most, defense))
    adjacency = record_adjacency(claim)
    low, high = _epsilon(least, delta, adjacency).low, _epsilon(most, delta, adjacency).high
    ends = Interval(low, max(low, high))  # rounding may have them the other way round
    return AccountedClaim(ends, delta, victim, bracket.assumptions, tuple(least), tuple(most))


def _in_a_round(mechanism: Mechanism, defense: Defense) -> int:
    """How many releases a round has at most, of which each batch is one.

    All rounds release as many; or all but one, where a round's gradient is sent in the next. What
    is clipped of all records of an agent is one release, of however many batches.
    """
    total, last = sum(release.count for release in mechanism), max(1, defense.n_rounds - 1)
    even = [total // rounds for rounds in (last, defense.n_rounds) if total % rounds == 0]
    batches = 1 if defense.protects == "user" else defense.batches_per_round
    return min(total, max(batches, *even or [ceil(total / last)]))


def _least_noise(mechanism: Mechanism, count: int) -> Mechanism:
    """So many releases under the least noise that any has."""
    if not mechanism:
        return ()
    least = min(mechanism, key=lambda release: release.noise_multiplier)
    return (least.model_copy(update={"count": count}),)


_epsilon = lru_cache(maxsize=256)(epsilon)  # equal for agents and adversaries that face the same


def _delta(claim: Claim, brackets: Iterable[Bracket]) -> float:
    """The claim's delta; 1e-5 where it is stated as mu. Pure claims are for Laplace noise."""
    if claim.mu is not None:
        return RESTATED_DELTA
    gaussian = any(
        release.family == "gaussian" and release.noise_multiplier > 0
        for bracket in brackets
        for release in (*bracket.least, *bracket.most)
    )
    if claim.delta == 0 and gaussian:
        raise ConfigError(
            "DPA049",
            f'claim "{claim.text}": Gaussian noise has no epsilon at delta = 0; expected a delta '
            "above 0",
        )
    return claim.delta
