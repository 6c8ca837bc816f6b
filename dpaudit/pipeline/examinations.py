"""What every audit with a claim examines, whatever attacks its file asks for.

Two attacks have a short form that tests what a claim rests on. The exact leak and the noise, by
`likelihood-ratio` without counted runs, are examined against each adversary that no such attack of
the file has. The distance that a record moves a message is examined by `sensitivity`, on as many
rounds as take little time, unless the file asks for it.
"""

from collections.abc import Iterator
from dataclasses import replace
from traceback import walk_tb
from typing import Any

from dpaudit.attack.contract import Attack, AttackContext
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import DpauditError, RunError, is_out_of_memory
from dpaudit.files.config import AuditConfig, Plugin
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import fewest_coordinates
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.rng import Streams
from dpaudit.training.costs import distances_bytes

LEAK = "likelihood-ratio"
DISTANCE = "sensitivity"
EXAMINES = {LEAK: "the exact leak of the view", DISTANCE: "how far a record moves messages"}
NUMBERS = 2 * 10**6  # of the gradients of all rounds that are examined for distances, about
REACH = 20  # rounds that are played where not all of a run are examined
MOST_BYTES = 5 * 10**8  # of tensors, beyond which one is left out


Examination = tuple[str, Attack]  # by the name of the attack that it is a short form of


def examinations(
    config: AuditConfig, defense: Defense, setting: Setting, streams: Streams
) -> Iterator[Examination]:
    """Those that the attacks of the file do not make already."""
    if not config.claim:
        return
    claimed = {claim.threat_model for claim in config.claim}
    options = [attack.options for attack in config.attack if attack.name == LEAK]
    asked = [given.get("threat_models") for given in options]  # whose exact leak the file asks for
    unread = tuple(
        model.name
        for model in config.threat_model
        if claimed & {None, model.name}
        and not any(names is None or model.name in names for names in asked)
    )
    if unread:
        yield _examination(LEAK, trials=0, threat_models=unread)
    if all(attack.name != DISTANCE for attack in config.attack):
        rounds = examined_for_distances(defense, setting, streams)
        yield _examination(DISTANCE, rounds=rounds, restarts=2, steps=0)


def examined_for_distances(defense: Defense, setting: Setting, streams: Streams) -> tuple[int, ...]:
    """All rounds of a small run; else the first, and others that are drawn from the first ones."""
    one = setting.n_agents * setting.d * defense.batch_size
    n, n_rounds = max(2, NUMBERS // one), defense.n_rounds
    if n >= n_rounds:
        return tuple(range(1, n_rounds + 1))
    reach = min(n_rounds, max(n, REACH))
    drawn = streams.numpy("rounds of distances").choice(reach - 1, min(n, reach) - 1, False)
    return tuple(sorted({1, *(int(k) + 2 for k in drawn)}))


def _examination(name: str, **options: Any) -> Examination:
    return name, Plugin(name=name, **options).create("attacks")


def examined_bytes(name: str, context: AttackContext, threat_model: ThreatModel) -> int:
    """What the examination of this name holds at once, by shapes alone: nothing is allocated."""
    defense, setting = context.defense, context.setting
    if name == DISTANCE:
        return distances_bytes(defense, context.problem, setting)
    honest = next((i for i in setting.holders if i not in threat_model.agents), None)
    if honest is None:
        return 0
    game = in_layers(Game.of(defense, setting, honest, "add-remove"))
    fewest = fewest_coordinates(game)
    game = replace(game, width=fewest) if fewest > 1 else game
    shapes = [GameShape.of(game, view) for view in (threat_model, with_every_link(threat_model))]
    n_rounds = shapes[0].followed(defense.n_rounds)
    return sum(shape.adversary(n_rounds) for shape in shapes)


def reason_not_examined(error: Exception) -> str:
    """Why something is not examined, which the defense made impossible; else the error is raised.

    A step may raise anything on other data or at other coordinates. Lack of memory, a run directory
    that is gone and an error of dpaudit's own code are no reasons.
    """
    frames = walk_tb(error.__traceback__)
    by_defense = any(isinstance(frame.f_locals.get("self"), Defense) for frame, _ in frames)
    numerical = isinstance(error, DpauditError | ArithmeticError | RuntimeError | ValueError)
    if isinstance(error, RunError) or is_out_of_memory(error) or not (by_defense or numerical):
        raise error
    return (str(error) or repr(error)).splitlines()[0]
