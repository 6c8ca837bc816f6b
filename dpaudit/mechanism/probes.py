"""What a function does beside what is claimed of it: low bits, other dtypes, values without size.

These are notes: they decide no verdict. Accounting assumes exact arithmetic, in which low bits of
an output say nothing; and a claim is about values of the dtype and the shape that it names.
"""

import warnings
from collections.abc import Iterator

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.mechanism_file import FLOATS, MechanismOptions
from dpaudit.files.result import Note
from dpaudit.statistics.bounds import from_scores

from .function import FunctionError
from .search import ALPHA, Search

RUNS = 1_000  # calls with either input, to examine low bits
CALLS = 64  # calls with another dtype
UNCHANGED = 0.5  # share of equal numbers from which on an output is its input
OTHERS = ("int64", "float16")  # dtypes that frameworks pass beside what was claimed


def probed(search: Search) -> Iterator[Note]:
    """What is striking; nothing else."""
    options = search.function.options
    if options.dtype in FLOATS[:2] and search.neighbours.finds_clip and search.is_additive:
        yield from _low_bits(search)
    if options.library == "numpy" and options.dtype in FLOATS:
        with warnings.catch_warnings():  # nobody says that the function is for such values
            warnings.simplefilter("ignore")
            notes = [note for dtype in OTHERS for note in _other_dtype(search, dtype)]
            notes += [note for shape in ((0,), (1,)) for note in _other_shape(search, shape)]
        yield from notes


def _low_bits(search: Search) -> Iterator[Note]:
    """Whether the lowest bit of a number says which input was there, though noise hides its value.

    Naive noise in floating point has finer steps about 0 than about a larger value (Mironov 2012).
    """
    move = search.moves[0]
    zero = move.pair._replace(without=search.neighbours.zero)
    assert move.moved is not None
    place = int(np.abs(move.moved).argmax())
    sides = [side[:, place] for side in search.outputs(zero, 2 * min(RUNS, search.few(RUNS)))]
    bits = [_lowest_bit(side) for side in sides]
    half = len(bits[0]) // 2
    counted, choosing = (bits[0][half:], bits[1][half:]), (bits[0][:half], bits[1][:half])
    bound = from_scores(*counted, search.delta, ALPHA, choosing)
    values = from_scores(
        sides[0][half:], sides[1][half:], search.delta, ALPHA, (sides[0][:half], sides[1][:half])
    )
    if bound.value > values.value:
        yield Note(
            "DPA138",
            f"The lowest bit of one number certifies epsilon {bound.value:.3g} between 0 and "
            f"another input, its value {values.value:.3g}: the noise has the steps of floating "
            "point. Accounting assumes exact arithmetic, and verdicts leave this out.",
        )


def _lowest_bit(values: Array) -> Array:
    """The exponent of the lowest bit that is set in each number."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(float) + (whole == 0))
    return np.asarray(np.where(whole == 0, 0.0, exponent + lowest - 53))


def _other_dtype(search: Search, dtype: str) -> Iterator[Note]:
    options = search.function.options.model_copy(update={"dtype": dtype, "output_dtype": dtype})
    shares = _unchanged(search, options)
    if shares is not None and shares >= UNCHANGED:
        yield Note(
            "DPA139",
            f"Called with {dtype}, the function returns {shares:.0%} of the numbers as they were: "
            "the noise is lost in that dtype, which this audit does not judge.",
        )


def _unchanged(search: Search, options: MechanismOptions) -> float | None:
    """Which share of the numbers comes back as it was; None if the function refuses the dtype."""
    function = search.function.beside(options)
    value = tuple(np.ones(shape, np.int64) for shape in options.shapes)
    if options.output_shapes != options.shapes:
        return None
    try:
        returned = function.in_turn([value], CALLS)[:, 0]
    except FunctionError:
        return None
    flat = np.concatenate([np.ravel(part) for part in value])
    same = np.mean([one == flat for one in returned])
    constant = np.mean(np.ptp(returned, axis=0) == 0)
    return float(max(same, constant))


def _other_shape(search: Search, shape: tuple[int, ...]) -> Iterator[Note]:
    """Values without numbers, or of one, must not fail: that they do shows which value it was."""
    options = search.function.options
    if options.is_list or options.records or options.output_shape is not None:
        return
    other = search.function.beside(options.model_copy(update={"shape": shape}))
    try:
        other((np.zeros(shape),))
    except FunctionError as error:
        yield Note(
            "DPA140",
            f"Called with a value of shape {shape}: {error}. Whether a value has that shape is "
            "then shown without noise.",
        )
