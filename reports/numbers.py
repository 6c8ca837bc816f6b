"""A number, an interval, a metric's name and a config as text on a page."""

import json
import math
from collections.abc import Mapping

from markupsafe import Markup

from dpaudit import text
from dpaudit.files.finding import Metric, Name

DECIMALS = ((0.01, 4), (2, 3), (10, 2), (100, 1))  # decimals of an interval that lies below a limit
METRIC_NAMES: Mapping[str, str] = {
    Name.SSIM: "SSIM",
    Name.SSIM_OVER_BLIND: "SSIM minus blind",
    Name.PSNR: "PSNR (dB)",
    Name.MSE: "MSE",
    Name.LOSS: "attacker's loss",
    Name.ROUGE_1: "ROUGE-1",
    Name.ROUGE_2: "ROUGE-2",
    Name.TPR: "TPR of tokens",
    Name.FPR: "FPR of tokens",
    Name.AUC: "AUC",
    Name.CHANCE_AUC: "AUC by chance",
    Name.TPR_AT_0001: "TPR at 0.1% FPR",
    Name.TPR_AT_001: "TPR at 1% FPR",
    Name.INFORMATION: "information (bits)",
    Name.M_NMI: "M-NMI",
    Name.GAUSSIAN_INFORMATION: "if Gaussian (bits)",
    Name.SELF_INFORMATION: "self-information (bits)",
    Name.BASELINE: "shuffled (bits)",
    Name.MU_OF_GIVEN_GRADIENTS: "mu if gradients did not react",
    Name.EPSILON_OF_DECLARED_SHAPE: "epsilon lower bound, if the noise is of the declared family",
}


def number(x: float | None) -> str:
    """Three significant digits; what is whole or over 100 without decimals, up to a million."""
    if x is None:
        return "–"
    if math.isnan(x):
        return "undefined"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if abs(x) < 1e6 and (abs(x) >= 100 or x == round(x)):
        return f"{x:z,.0f}".replace("-", "−")
    short = f"{x:.3g}"
    exact = float(short) == x  # 2.00 says that it is not quite 2
    return (short if exact else f"{x:#.3g}".rstrip(".")).replace("-", "−")


def at_most(x: float) -> str:
    """Three digits, rounded up: an upper end stays one."""
    return number(float(text.at_most(x)))


def at_least(x: float) -> str:
    """Three digits, rounded down: a lower end stays one."""
    return number(float(text.at_least(x)))


def hundredths(x: float) -> str:
    """Two decimals, where there is no room for more."""
    return f"{x:z.2f}".replace("-", "−") if math.isfinite(x) else number(x)


def estimate(metric: Metric) -> Markup:
    """A value and its interval, all with the same decimals."""
    ends = [end for end in (metric.low, metric.high) if end is not None]
    if not ends:
        return Markup(number(metric.value))
    finite = [abs(x) for x in (metric.value, *ends) if math.isfinite(x)]
    largest = max(finite, default=0.0)
    decimals = next((d for limit, d in DECIMALS if largest < limit), None)

    def shown(x: float | None) -> str:
        if x is None or not math.isfinite(x) or decimals is None or largest < 1e-3:
            return number(x)
        return f"{x:z.{decimals}f}".replace("-", "−")

    low, high = shown(metric.low), shown(metric.high)
    return Markup('{} <span class="interval">[{}, {}]</span>').format(
        shown(metric.value), low, high
    )


def exact(value: object) -> Markup:
    """A cell of a table: three digits of a number are shown, and all of them are copied."""
    if isinstance(value, float):
        return Markup('<data value="{}">{}</data>').format(repr(value), number(value))
    return Markup("{}").format("–" if value is None else value)


def span(metric: Metric) -> str:
    """A number that is known to lie in its interval, such as an accountant's epsilon."""
    low, high = number(metric.low), number(metric.high)
    if metric.low is None or metric.high is None or low == high:
        return number(metric.value)
    return f"{low} to {high}"


def metric_name(name: str) -> str:
    """A metric's name as a reader of papers knows it."""
    return METRIC_NAMES.get(name, name.replace("_", " "))


def as_json(config: object) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False)
