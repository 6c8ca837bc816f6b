"""DpEvents of Google's dp-accounting as JSON, to releases and back.

JSON of what ``DpEvent.to_named_tuple`` gives: an object with ``module_name``, ``class_name`` and
the fields of the class. Sensitivities are 1 there, and noise multipliers are of that.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpaudit.errors import ConfigError
from dpaudit.release import Release

from .atomic_files import write_whole
from .documents import read_json, reason
from .ledger_file import message

MODULE = "dp_accounting.dp_event"
MOST_EVENTS = 10_000  # inside of one another, and beside one another
FAMILIES = {"GaussianDpEvent": "gaussian", "LaplaceDpEvent": "laplace"}


def read_event(path: Path) -> list[Release]:
    """The releases of a file. Raises ConfigError: it holds another event, or none."""
    try:
        found = list(_releases(read_json(path), 1, "none", 1.0))
    except OSError as error:
        raise ConfigError("DPA007", f"{path}: {reason(error)}") from None
    except RecursionError:
        said = "nested too deeply"
    except KeyError as error:
        said = f"it lacks {error}"
    except ZeroDivisionError:
        said = "it samples a data set of size 0"
    except ValidationError as error:
        said = message(error.errors()[0])
    except (TypeError, ValueError) as error:
        said = reason(error) if isinstance(error, ValueError) else "a value has another type"
    else:
        if 0 < len(found) <= MOST_EVENTS:
            return found
        said = f"expected 1 to {MOST_EVENTS:,} releases, got {len(found):,}"
    raise ConfigError(
        "DPA011",
        f"{path}: not a DpEvent: {said}",
        "write it with --write-event, or as JSON of what to_named_tuple of dp-accounting gives",
    )


def _releases(event: Any, count: int, sampling: str, rate: float) -> Iterator[Release]:
    """Releases of an event that is sampled and repeated ``count`` times."""
    if not isinstance(event, dict):
        raise ValueError("expected an object with class_name")
    name = event["class_name"]
    if name == "NoOpDpEvent":
        return
    if name in FAMILIES:
        yield Release.model_validate(
            {
                "family": FAMILIES[name],
                "noise_multiplier": event["noise_multiplier"],
                "sampling": sampling,
                "sampling_rate": rate,
                "count": count,
            }
        )
    elif name == "SelfComposedDpEvent":
        yield from _releases(event["event"], count * int(event["count"]), sampling, rate)
    elif name == "ComposedDpEvent":
        for one in event["events"]:
            yield from _releases(one, count, sampling, rate)
    elif name in ("PoissonSampledDpEvent", "SampledWithoutReplacementDpEvent"):
        if rate != 1:
            raise ValueError("a sample of a sample has no release here")
        if name == "PoissonSampledDpEvent":
            drawn, kind = event["sampling_probability"], "poisson"
        else:
            drawn, kind = event["sample_size"] / event["source_dataset_size"], "fixed"
        yield from _releases(event["event"], count, "none" if drawn == 1 else kind, float(drawn))
    else:
        raise ValueError(f"{name} has no release here; known are Gaussian, Laplace, composed and "
                         "sampled events")  # fmt: skip


def write_event(path: Path, releases: Iterable[Release], records: int | None = None) -> None:
    """Releases as one composed event.

    Args:
        records: of the data set, which batches of fixed size need.

    Raises:
        ConfigError: the path cannot be written, or the number of records is needed.
    """
    content = _event("ComposedDpEvent", events=[_of(release, records) for release in releases])
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _of(release: Release, records: int | None) -> dict[str, Any]:
    classes = {family: name for name, family in FAMILIES.items()}
    event = _event(classes[release.family], noise_multiplier=release.noise_multiplier)
    rate = release.sampling_rate
    if release.sampling == "poisson" and rate < 1:
        event = _event("PoissonSampledDpEvent", sampling_probability=rate, event=event)
    elif release.sampling == "fixed" and rate < 1:
        if records is None:
            said = "a batch of fixed size needs the number of records"
            raise ConfigError("DPA014", f"--write-event: {said}; expected --sampling poisson")
        size = round(rate * records)
        name = "SampledWithoutReplacementDpEvent"
        event = _event(name, source_dataset_size=records, sample_size=size, event=event)
    return _event("SelfComposedDpEvent", event=event, count=release.count)


def _event(name: str, **fields: Any) -> dict[str, Any]:
    return {"module_name": MODULE, "class_name": name, **fields}
