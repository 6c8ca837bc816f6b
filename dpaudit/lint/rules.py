"""The rules: each asks for several facts about one function, and says where they meet."""

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .flow import defaults, parameters_of
from .values import Clip, Function, FunctionEvent, Loop, NoiseDraw, Value, path_of
from .vocabulary import (
    ACCOUNTANT,
    BOUND,
    CLAIMED,
    CLIP_GRADIENT,
    COMPOSED,
    EPSILON,
    HALVES,
    INTEGERS,
    LENGTH_OF_BATCH,
    MANY,
    MECHANISM,
    NOISING,
    NOT_BATCH,
    POISSON,
    PRIVACY,
    RATE,
    SENSITIVITY,
    SIZES,
)


@dataclass(frozen=True)
class FoundHint:
    """A rule that applies at a place."""

    code: str
    line: int
    column: int
    message: str


@dataclass(frozen=True)
class FunctionReading:
    """One function that was read."""

    node: Function | ast.Module
    owner: ast.ClassDef | None
    name: str
    events: list[FunctionEvent]

    def of(self, kind: str) -> Iterator[FunctionEvent]:
        return (event for event in self.events if event.kind == kind)

    @cached_property
    def scope(self) -> frozenset[str]:
        """All identifiers of the class, or of the function outside of one."""
        return identifiers(self.owner or self.node)

    @cached_property
    def is_about_privacy(self) -> bool:
        """Whether the noise may be meant to hide something: noise has many other uses."""
        scales = [
            name
            for event in self.of("add")
            for draw in event.values[1].draws
            for name in draw.scale
        ]
        return (
            any(_clip(event).bound or _clip(event).order != math.inf for event in self.of("clip"))
            or any(
                pattern.search(name) for name in scales for pattern in (EPSILON, SENSITIVITY, BOUND)
            )
            or any(map(PRIVACY.search, self.scope))
        )

    @property
    def parameters(self) -> frozenset[str]:
        if isinstance(self.node, ast.Module):
            return frozenset()
        return frozenset(parameters_of(self.node))


def identifiers(node: ast.AST) -> frozenset[str]:
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.arg | ast.keyword) and part.arg:
            found.add(part.arg)
        elif isinstance(part, ast.alias | ast.FunctionDef | ast.ClassDef):
            found.add(part.name)
    return frozenset(found)


def laplace_after_l2(reading: FunctionReading) -> Iterator[FoundHint]:
    for event in reading.of("add"):
        data, noise = event.values
        orders = {clip.order for clip in data.clips}
        for draw in noise.draws if orders == {2.0} else ():
            if draw.family == "laplace" and not any(map(SIZES.search, draw.scale)):
                at = min(clip.line for clip in data.clips)
                yield _at(
                    draw,
                    "DPA201",
                    f"Laplace noise on a value that is clipped in the L2 norm (line {at})",
                )


def noise_per_recipient(reading: FunctionReading) -> Iterator[FoundHint]:
    for event in reading.of("send"):
        for loop in (loop for loop in event.loops if loop.kind == "recipients"):
            for value in event.values:
                own = value.names & loop.names
                drawn = [draw for draw in value.draws if loop in draw.loops]
                if drawn and "data" in value.tags and not own:
                    yield _at(
                        drawn[0], "DPA202",
                        "noise is drawn again for each recipient of the same value (loop of line "
                        f"{loop.line})",
                    )  # fmt: skip


def never_composed(reading: FunctionReading) -> Iterator[FoundHint]:
    owner = reading.owner
    names = [] if owner is None else [owner.name, *(path_of(base) for base in owner.bases)]
    if reading.name == "__init__" or any(map(MECHANISM.search, names)):
        return  # a mechanism is one release, and whoever calls it adds up
    with_default = set()
    if isinstance(reading.node, ast.FunctionDef | ast.AsyncFunctionDef):
        with_default = {name for name, _ in defaults(reading.node)}
    said: set[frozenset[str]] = set()
    for draw in _added(reading):
        epsilons = {name for name in draw.scale if EPSILON.search(name)}
        rounds = [
            loop for loop in draw.loops if loop.kind == "rounds" and not epsilons & loop.names
        ]
        of_object = reading.owner is not None and not epsilons & (reading.parameters - with_default)
        if not epsilons or any(map(MANY.search, draw.scale)) or not (rounds or of_object):
            continue
        if any(map(COMPOSED.search, reading.scope)):
            return
        if epsilons in said:
            continue
        said.add(frozenset(epsilons))
        how = "in each round" if rounds else "in each call"
        yield _at(
            draw, "DPA203", f"{min(epsilons)} is spent {how}, and nothing here adds the calls up"
        )


def classical_formula(reading: FunctionReading) -> Iterator[FoundHint]:
    for event in reading.of("formula"):
        divisor = event.values[1]
        epsilons = sorted(name for name in divisor.names if EPSILON.search(name))
        if epsilons and not _limits_epsilon(reading.owner or reading.node):
            yield FoundHint(
                "DPA204", event.line, event.column,
                f"sqrt(2 log(1.25/delta)) / {epsilons[0]}: proven for epsilon below 1 only, and "
                "nothing here keeps it below 1",
            )  # fmt: skip


def _limits_epsilon(node: ast.AST) -> bool:
    """Whether epsilon is compared with a number from 0.5 to 1 anywhere."""
    for part in ast.walk(node):
        if isinstance(part, ast.Compare):
            sides = [part.left, *part.comparators]
            numbers = [side.value for side in sides if isinstance(side, ast.Constant)]
            has_limit = any(isinstance(n, int | float) and 0.5 <= n <= 1 for n in numbers)
            if has_limit and any(EPSILON.search(ast.unparse(side)) for side in sides):
                return True
    return False


def divided_by_length(reading: FunctionReading) -> Iterator[FoundHint]:
    for event in reading.of("divide") if reading.is_about_privacy else ():
        data, length = event.values
        if not any(added.function == event.function for added in reading.of("add")):
            continue
        of_batch = [
            n for n in length.names if LENGTH_OF_BATCH.search(n) and not NOT_BATCH.search(n)
        ]
        if (data.clips or data.draws) and "data" in data.tags and of_batch:
            yield FoundHint(
                "DPA206", event.line, event.column,
                f"a private sum is divided by the length of {min(of_batch)}, which depends on "
                "the data",
            )  # fmt: skip


def lossy_dtype(reading: FunctionReading) -> Iterator[FoundHint]:
    places = {(draw.line, draw.column) for draw in _added(reading)}
    for event in reading.of("cast") if reading.is_about_privacy else ():
        if "derived" in event.values[0].tags or not places & {
            (draw.line, draw.column) for draw in event.values[0].draws
        }:
            continue
        if event.name in INTEGERS | HALVES:
            what = f"noise is cast to {event.name} before it is added"
        else:
            what = f"noise is cast to {event.name}, which may be an integer type"
        yield FoundHint("DPA207", event.line, event.column, what)


def beside_the_noise(reading: FunctionReading) -> Iterator[FoundHint]:
    if not reading.is_about_privacy:
        return
    own = [event for event in reading.of("add") if event.function == reading.name]
    noised = frozenset().union(*(event.values[0].names for event in own))
    for event in reading.of("return"):
        parts = [inner for part in event.values[0].parts for inner in part[2].parts or [part]]
        is_noised = any(value.draws and "data" in value.tags for _, _, value in parts)
        if is_noised and event.function == reading.name:
            for line, column, value in parts:
                if _is_statistic(value):
                    yield FoundHint("DPA208", line, column, _beside(value, "returned"))
    for event in (*reading.of("send"), *reading.of("log")):
        for value in event.values:
            if _is_statistic(value) and value.names & noised:
                how = "sent" if event.kind == "send" else "logged"
                yield FoundHint("DPA208", event.line, event.column, _beside(value, how))


def _is_statistic(value: Value) -> bool:
    computed = bool(value.norms) or "statistic" in value.tags
    return computed and not value.draws and value.bound is None


def _beside(value: Value, how: str) -> str:
    what = "a norm" if value.norms else "a statistic"
    return f"{what} of the value before its noise is {how} beside the noised value"


def by_layer(reading: FunctionReading) -> Iterator[FoundHint]:
    events = list(reading.of("clip"))
    if any(_clip(e).order == 2 and not _layers(_clip(e)) for e in events):
        return
    for clip in (_clip(e) for e in events if not e.values[0].draws):
        for loop in _layers(clip)[:1]:
            own = not clip.norms or any(loop in norm.loops for norm in clip.norms)
            tied = clip.bound and not clip.bound & loop.names and own and clip.order != math.inf
            for draw in _added(reading) if tied else ():
                names = clip.bound | draw.scale
                if clip.bound & draw.scale and not any("layer" in n or "param" in n for n in names):
                    yield FoundHint(
                        "DPA209", clip.line, clip.column,
                        f"each layer is clipped to {min(clip.bound)}, which is also the bound of "
                        f"the noise of the whole (line {draw.line})",
                    )  # fmt: skip


def _clip(event: FunctionEvent) -> Clip:
    assert event.clip is not None
    return event.clip


def _layers(clip: Clip) -> list[Loop]:
    return [loop for loop in clip.loops if loop.kind == "layers"]


def free_sensitivity(reading: FunctionReading) -> Iterator[FoundHint]:
    bounds = [_clip(event).bound for event in reading.of("clip")]
    for draw in _added(reading) if bounds and all(bounds) else ():
        named = [name for name in draw.scale if SENSITIVITY.search(name)]
        named = [name for name in named if not _is_computed(name, reading.owner or reading.node)]
        if named and not any(bound & draw.scale for bound in bounds):
            yield _at(
                draw, "DPA210",
                f"the noise is scaled by {min(named)}, which does not follow from the clip norm "
                f"{min(bounds[0])}",
            )  # fmt: skip


def _is_computed(path: str, scope: ast.AST) -> bool:
    """Whether a name, or an attribute of that name, is set to more than an argument."""
    last = path.rpartition(".")[2]
    assigned = [part for part in ast.walk(scope) if isinstance(part, ast.Assign)]
    computed = (a for a in assigned if not isinstance(a.value, ast.Name | ast.Constant | ast.Tuple))
    targets = (target for part in computed for target in part.targets)
    return any(path_of(target).rpartition(".")[2] == last for target in targets)


def repeated_noise(reading: FunctionReading) -> Iterator[FoundHint]:
    is_script = isinstance(reading.node, ast.Module) or reading.name.startswith(("main", "test"))
    says_so = NOISING.search(reading.name)  # its name: whatever it is for, the noise is the same
    if not any(reading.of("add")) or not (reading.is_about_privacy or says_so):
        return
    for seed in reading.of("seed"):
        value = seed.values[0] if seed.values else None
        changes = value is None or any(value.names & loop.names for loop in seed.loops)
        passed_on = value is not None and value.number is None and "default_rng" in seed.name
        if (
            changes
            or value is None
            or passed_on
            or (not seed.loops and (is_script or value.number is None))
        ):
            continue
        if value.number is None and not all("seed" in name.lower() for name in value.names):
            continue
        for event in reading.of("add"):
            draws = sorted(event.values[1].draws, key=lambda draw: draw.line)
            if draws and all(_repeats(seed, draw) for draw in draws):
                draw = draws[0]
                often = "in each round of the loop" if seed.loops else "in each call"
                yield FoundHint(
                    "DPA211", seed.line, seed.column,
                    f"{seed.name.partition(' ')[0]} starts the same noise again {often} "
                    f"(line {draw.line})",
                )  # fmt: skip
                break
    yield from _reused_keys(reading)


def _repeats(seed: FunctionEvent, draw: NoiseDraw) -> bool:
    """Whether a draw gives the same after each call of a seed."""
    inside, inner = draw.loops[: len(seed.loops)], draw.loops[len(seed.loops) :]
    if inside != seed.loops or any(loop.kind != "layers" for loop in inner):
        return False
    if draw.seeds:
        return f"seed:{seed.line}" in draw.seeds
    return draw.line >= seed.line and _same_library(seed.name, draw.source)


def _same_library(seed: str, source: str) -> bool:
    """Whether a seed of all draws of a library is one of these."""
    libraries = {"np": "numpy", "numpy": "numpy", "torch": "torch", "random": "random", "tf": "tf"}
    one, other = libraries.get(seed.split(".")[0]), libraries.get(source)
    of_all = not seed.partition(" ")[0].endswith(("default_rng", "RandomState", "Key", "Random"))
    return of_all and one is not None and (other is None or one == other)


def _reused_keys(reading: FunctionReading) -> Iterator[FoundHint]:
    """Find keys of JAX that no round of a loop replaces."""
    loops = [node for node in ast.walk(reading.node) if isinstance(node, ast.For | ast.While)]
    for event in reading.of("key"):
        around = [n for n in loops if n.lineno <= event.line <= (n.end_lineno or 0)]
        if around and event.name.isidentifier():
            inner = ast.walk(around[-1])
            assigned = {
                n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            if event.name not in assigned:
                said = f"the key {event.name} is not split: each round draws the same noise"
                yield FoundHint("DPA211", event.line, event.column, said)


def batch_clipped(reading: FunctionReading) -> Iterator[FoundHint]:
    about = f"{reading.name} {reading.owner.name if reading.owner else ''}".lower()
    clips = [_clip(event) for event in reading.of("clip")]
    by_record = any(c.each or any(loop.kind == "records" for loop in c.loops) for c in clips)
    if by_record or "user" in about or "client" in about:
        return
    after = [event.line for event in reading.of("add") if "grad" in event.values[0].tags]
    for clip in clips:
        if clip.name in CLIP_GRADIENT and any(line > clip.line for line in after):
            yield FoundHint(
                "DPA212", clip.line, clip.column,
                "the gradient of a whole batch is clipped, not that of each record, and noise is "
                f"added (line {after[0]})",
            )  # fmt: skip


def clipped_after(reading: FunctionReading) -> Iterator[FoundHint]:
    added = {draw for draw in _added(reading) if draw.scale}
    for event in reading.of("clip"):
        data, clip = event.values[0], _clip(event)
        is_clear = not data.clips and clip.order != math.inf and "derived" not in data.tags
        if data.draws & added and "data" in data.tags and is_clear:
            line = min(draw.line for draw in data.draws)
            said = f"the value is clipped after the noise of line {line} is added"
            yield FoundHint("DPA213", clip.line, clip.column, said)


def other_sampler(reading: FunctionReading) -> Iterator[FoundHint]:
    """Check a whole file, as accountant and loader often stand in different functions."""
    if not isinstance(reading.node, ast.Module):
        return
    calls = [node for node in ast.walk(reading.node) if isinstance(node, ast.Call)]
    engines = [call for call in calls if _last(call).startswith("make_private")]
    for call in engines if any(map(CLAIMED.search, reading.scope)) else ():
        for keyword in call.keywords:
            if keyword.arg == "poisson_sampling" and getattr(keyword.value, "value", 1) is False:
                said = (
                    "poisson_sampling=False: the accountant assumes Poisson sampling all the same"
                )
                yield FoundHint("DPA205", call.lineno, call.col_offset + 1, said)
    rated = [call for call in calls if ACCOUNTANT.fullmatch(_last(call)) and _has_rate(call)]
    if not rated or any(map(POISSON.search, reading.scope)):
        return
    for call in calls:
        shuffles = any(
            keyword.arg == "shuffle" and getattr(keyword.value, "value", 0) is True
            for keyword in call.keywords
        )
        if _last(call) == "DataLoader" and shuffles:
            yield FoundHint(
                "DPA205", call.lineno, call.col_offset + 1,
                f"batches are shuffled, and the accountant (line {rated[0].lineno}) is given a "
                "sampling rate",
            )  # fmt: skip


def _last(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _has_rate(call: ast.Call) -> bool:
    named = [k for k in call.keywords if k.arg and RATE.match(k.arg)]
    return any(getattr(k.value, "value", 0) != 1 for k in named) or _last(call).startswith(
        ("compute_rdp", "PoissonSampled", "compute_dp_sgd")
    )


def _added(reading: FunctionReading) -> Iterator[NoiseDraw]:
    """Each place where noise is drawn that is added to something, once."""
    seen = set()
    for event in reading.of("add"):
        for draw in sorted(event.values[1].draws, key=lambda draw: (draw.line, draw.column)):
            if draw not in seen:
                seen.add(draw)
                yield draw


def _at(draw: NoiseDraw, code: str, message: str) -> FoundHint:
    return FoundHint(code, draw.line, draw.column, message)


RULES: tuple[Callable[[FunctionReading], Iterator[FoundHint]], ...] = (
    laplace_after_l2,
    noise_per_recipient,
    never_composed,
    classical_formula,
    other_sampler,
    divided_by_length,
    lossy_dtype,
    beside_the_noise,
    by_layer,
    free_sensitivity,
    repeated_noise,
    batch_clipped,
    clipped_after,
)
