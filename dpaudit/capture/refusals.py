"""What an audit asks of a program that is not there: agents, rounds, lines of noise."""

from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig

from .runs import ProgramRun


def refuse_absent(config: CapturedConfig, plain: ProgramRun) -> None:
    """Raises RunError for the first of them."""
    if not plain.messages:
        begins = config.messages.round_starts_at
        why = f'"{begins}" sends and draws nothing' if begins else "the messages have no period"
        raise RunError(
            "DPA059",
            f"no rounds were found: {why}",
            "name the line at which they begin, of a message or a "
            "draw, by messages.round_starts_at",
        )
    for victim in config.record.victims:
        if victim in plain.seen_by_receivers:
            raise RunError(
                "DPA064",
                f"record.victims: messages of agent {victim} were seen where they are received "
                "alone, and so not in order with its batches and noise",
                "show them to tap.send, or serve them by a server that the recorder knows",
            )
        if victim not in plain.agents:
            raise RunError(
                "DPA064",
                f"record.victims: agent {victim} sends nothing; there are agents "
                f"{', '.join(map(str, plain.agents))}",
            )
    for k in config.record.rounds:
        if k > plain.n_rounds:
            raise RunError("DPA064", f"record.rounds: {k}; the program has {plain.n_rounds} rounds")
    for site in config.noise.sites:
        if site not in {draw.name for draw in plain.draws}:
            names = ", ".join(plain.drawing_lines) or "none"
            raise RunError("DPA064", f'noise.sites: "{site}" is never reached; drawn were: {names}')
    if plain.summed and len(config.record.victims) > 1:
        raise RunError(
            "DPA005", 'record.victims: expected one with messages.reductions = "sum only"'
        )
