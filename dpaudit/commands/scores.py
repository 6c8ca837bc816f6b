"""`dpaudit epsilon-from-scores`: what scores that somebody else computed certify."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError, DataError
from dpaudit.files.score_file import read_scores
from dpaudit.text import at_least

from .terminal import say, say_json

if TYPE_CHECKING:
    from dpaudit.accounting.privacy_loss import Array

Found = Mapping[str, float | int | str | bool]
LEAST_ALPHA = 1e-12  # below it, 1 - alpha and quantiles are rounded
UNFAIR = 1e-6  # two-sided, of the coins of one run

OF_RUNS = "each score is of a run, or of a canary, that is independent of all others"
OF_ONE_RUN = "scores of one run, in which each canary was included by a fair coin of its own"


def epsilon_from_scores(
    in_scores: Annotated[
        Path, Argument(metavar="IN", help="Scores of canaries that were included, a .npy file.")
    ],
    out_scores: Annotated[
        Path, Argument(metavar="OUT", help="Scores of canaries that were left out, a .npy file.")
    ],
    delta: Annotated[float, Option(help="The delta.")] = 1e-5,
    alpha: Annotated[float, Option(help="The probability of a false bound.")] = 0.05,
    threshold: Annotated[
        float | None,
        Option(help="Call scores above it included; default: a tenth of the scores chooses it."),
    ] = None,
    one_run: Annotated[
        bool, Option("--one-run", help="All scores are of one run, with coins for the canaries.")
    ] = False,
    guesses: Annotated[
        int | None, Option(help="Guess on so many canaries of one run; default: a tenth.")
    ] = None,
    family: Annotated[
        Literal["gaussian"] | None,
        Option(help="Assume a mechanism with a trade-off curve of this family."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="The seed of the choice among the scores.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """A certified lower bound on epsilon from two files of scores, whatever made them."""
    _refuse(delta, alpha, threshold, one_run, guesses, family)
    included, left_out = read_scores(in_scores), read_scores(out_scores)
    if one_run:
        found = by_guesses(included, left_out, delta, alpha, guesses, family, seed)
    else:
        found = by_counts(included, left_out, delta, alpha, threshold, family, seed)
    figures = {"delta": delta, "confidence": 1 - alpha, **found}
    if as_json:
        say_json(json.dumps(figures, indent=2))
        return
    bound, mu = found["epsilon_lower_bound"], found.get("mu_lower_bound")
    of_mu = "" if mu is None else f" (mu at least {at_least(float(mu), 4)})"
    least = f"epsilon at least {at_least(float(bound), 4)}{of_mu}"
    say(f"{least} at delta {delta:g}, {1 - alpha:.6g} confidence")
    say(f"{found['evidence']}; without an error it would be {found['ceiling']:.4g}")
    say(f"assuming {found['assuming']}")


def by_counts(
    included: "Array",
    left_out: "Array",
    delta: float,
    alpha: float,
    threshold: float | None,
    family: str | None,
    seed: int,
) -> Found:
    """Errors of one test, counted on scores that did not choose it."""
    import numpy as np

    from dpaudit.accounting.families import GAUSSIAN
    from dpaudit.statistics import bounds

    rng = np.random.default_rng(seed)
    if threshold is not None:
        fp, fn = int((left_out > threshold).sum()), int((included <= threshold).sum())
        counts, above = (fp, fn, len(left_out), len(included)), True
    else:
        chosen = (
            bounds.from_scores(left_out, included, delta, alpha, rng, decimals=None)
            if family is None
            else bounds.family_from_scores(left_out, included, alpha, rng, decimals=None)
        )
        counts, above, threshold = chosen[3:], chosen.above, chosen.threshold
    fp, fn, n0, n1 = counts

    def bound(fp: int, fn: int) -> dict[str, float]:
        if family is None:
            return {"": float(bounds.epsilon_lower_bound(fp, fn, n0, n1, delta, alpha))}
        mu = float(bounds.family_lower_bound(fp, fn, n0, n1, alpha))
        return {"mu": mu, "": GAUSSIAN.epsilon(mu, delta)}

    side = "above" if above else "below"
    return {
        **_figures(bound(fp, fn), bound(0, 0)),
        "threshold": threshold if isfinite(threshold) else str(threshold),
        "above": above,
        "false_positives": fp,
        "false_negatives": fn,
        "n_out": n0,
        "n_in": n1,
        "evidence": f"{side} {threshold:.6g} are {fp:,} of {n0:,} that were left out and "
        f"{n1 - fn:,} of {n1:,} that were included",
        "assuming": OF_RUNS + _assumed(family),
    }


def _figures(certified: Mapping[str, float], without_errors: Mapping[str, float]) -> Found:
    """The bound that is certified, and the one that no error would certify."""
    of_mu = {"mu_lower_bound": certified["mu"]} if "mu" in certified else {}
    return {"epsilon_lower_bound": certified[""], **of_mu, "ceiling": without_errors[""]}


def by_guesses(
    included: "Array",
    left_out: "Array",
    delta: float,
    alpha: float,
    guesses: int | None,
    family: str | None,
    seed: int,
) -> Found:
    """Guesses on the canaries of one run with the highest and the lowest scores."""
    import numpy as np
    from scipy.stats import rankdata

    from dpaudit.accounting.families import GAUSSIAN
    from dpaudit.statistics import guesses as by_guesses

    m = len(included) + len(left_out)
    n = max(1, m // 10) if guesses is None else guesses
    if n > m:
        raise ConfigError("DPA014", f"--guesses: expected 1 to {m:,}, the canaries, got {n:,}")
    _refuse_unfair(len(included), m)
    # equal scores are guessed on in an order that knows nothing of the coins
    mixed = np.random.default_rng(seed).permutation(m)
    scores = np.concatenate([included, left_out])[mixed]
    evidence = rankdata(scores) - (m + 1) / 2
    right = by_guesses.correct_guesses(evidence, (mixed < len(included)).astype(float), n)

    def bound(right: int) -> dict[str, float]:
        if family is None:
            return {"": by_guesses.epsilon_from_guesses(m, n, right, delta, alpha)}
        mu = by_guesses.shift_from_guesses(m, n, right, alpha)
        return {"mu": mu, "": GAUSSIAN.epsilon(mu, delta)}

    return {
        **_figures(bound(right), bound(n)),
        "guesses": n,
        "right_guesses": right,
        "n_out": len(left_out),
        "n_in": len(included),
        "evidence": f"{right:,} of {n:,} guesses on the strongest of {m:,} canaries are right",
        "assuming": OF_ONE_RUN + _assumed(family),
    }


def _assumed(family: str | None) -> str:
    return "" if family is None else "; the mechanism has the trade-off curve of a Gaussian one"


def _refuse_unfair(n_in: int, m: int) -> None:
    """Raises DataError: no fair coins leave so few, or so many, of the canaries in."""
    from scipy.stats import binomtest

    p = float(binomtest(n_in, m).pvalue)
    if p < UNFAIR:
        raise DataError(
            "DPA072",
            f"--one-run: {n_in:,} of {m:,} canaries were included, which fair coins give with "
            f"probability {p:.1g}; expected about half",
        )


def _refuse(
    delta: float,
    alpha: float,
    threshold: float | None,
    one_run: bool,
    guesses: int | None,
    family: str | None,
) -> None:
    """Raises ConfigError, with a line for each option that cannot be meant."""
    problems = []
    if not 0 <= delta < 1:
        problems.append(f"--delta: expected at least 0 and below 1, got {delta:g}")
    if family is not None and delta == 0:
        problems.append("--delta: expected above 0: Gaussian noise has no epsilon at delta 0")
    if not 0 < alpha < 0.5:
        problems.append(f"--alpha: expected above 0 and below 0.5, got {alpha:g}")
    elif alpha < LEAST_ALPHA:
        problems.append(f"--alpha: expected at least {LEAST_ALPHA:g}, got {alpha:g}")
    if threshold is not None and threshold != threshold:
        problems.append("--threshold: expected a number, got nan")
    if one_run and threshold is not None:
        problems.append("--threshold: guesses of --one-run have no threshold")
    if guesses is not None and not one_run:
        problems.append("--guesses: expected --one-run; without it every score is counted")
    if guesses is not None and guesses < 1:
        problems.append(f"--guesses: expected at least 1, got {guesses}")
    if problems:
        raise ConfigError("DPA014", "\n".join(problems))
