"""The command that audits one function, from a value to a noised value."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.mechanism_values import Dtype, Norm
from dpaudit.files.verdict import Verdict
from dpaudit.inputs.recorder import recording
from dpaudit.progress import counted

from . import options, terminal
from .running import progress_bars
from .terminal import complain

Shapes = Annotated[
    list[str], Option(help="The shape of the value, as 784,10; repeated for a list of tensors.")
]
OutputShapes = Annotated[
    list[str] | None, Option(help="The shape that is returned; default: that of the value.")
]
Neighbours = Annotated[
    Literal["add-remove", "replace-one"], Option(help="Neighbours: a value and zero, or any two.")
]
Sensitivity = Annotated[
    float | None, Option(help="The largest distance of two neighbours; default: none.")
]
Records = Annotated[
    bool, Option("--records", help="The rows of the value are records, of which one changes.")
]
OutputDtype = Annotated[
    Dtype | None, Option(help="The dtype that is returned; default: that of the value.")
]
Python = Annotated[
    str | None, Option(help="The interpreter of the environment in which the function lives.")
]
OwnRandomness = Annotated[
    bool, Option("--own-randomness", help="Allow randomness that seeds do not set.")
]


def mechanism(
    function: Annotated[
        str, Argument(metavar="MODULE:FUNCTION", help="The function, or file.py:function.")
    ],
    epsilon: Annotated[float, Option(help="The epsilon that is claimed, in nats.")],
    shape: Shapes,
    delta: Annotated[float, Option(help="The delta that is claimed.")] = 0.0,
    adjacency: Neighbours = "replace-one",
    sensitivity: Sensitivity = None,
    norm: Annotated[Norm, Option(help="The norm of that distance.")] = "l2",
    records: Records = False,
    low: Annotated[float | None, Option(help="The least number of a value.")] = None,
    high: Annotated[float | None, Option(help="The largest number of a value.")] = None,
    calls: Annotated[int, Option(min=1, help="Calls with one value that the claim covers.")] = 1,
    dtype: Annotated[Dtype, Option(help="The dtype of the value.")] = "float64",
    library: Annotated[Literal["numpy", "torch"], Option(help="Whose arrays it takes.")] = "numpy",
    output_shape: OutputShapes = None,
    output_dtype: OutputDtype = None,
    runs: Annotated[int, Option(min=100, help="Counted runs with each of two inputs.")] = 20_000,
    seconds: Annotated[float, Option(help="Refuse an audit that would take longer.")] = 600.0,
    own_randomness: OwnRandomness = False,
    python: Python = None,
    seed: Annotated[int, Option(min=0, help="The seed of all runs.")] = 0,
    out: Annotated[Path | None, Option(help="The run directory; default: runs/FUNCTION.")] = None,
    quiet: options.Quiet = False,
    as_json: options.AuditJson = False,
) -> int:
    """Audit one function that returns its value with noise.

    Exits 1 if the claim is refuted or unsupported, 2 if the function cannot be audited, else 0.
    """
    given = dict(locals())
    from dpaudit.files.mechanism_file import MechanismOptions

    given["shape"] = _shape("--shape", shape)
    given["output_shape"] = None if not output_shape else _shape("--output-shape", output_shape)
    fields = MechanismOptions.model_fields
    table = {key: given[key] for key in fields if given[key] != fields[key].default}
    claim = {"text": "the claim", "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    content = {"seed": seed, "mechanism": table, "claim": [claim]}
    out = out or Path("runs") / function.rpartition(":")[2]
    sys.path.insert(0, os.getcwd())
    with recording((str(out),)):
        from dpaudit.mechanism.source import from_python, run_mechanism

        config = from_python(content)
        with terminal.prints_on_stderr(), progress_bars(quiet) as on_progress:
            result = run_mechanism(
                config, out, _toml(content), on_progress=on_progress, say=complain
            )
    terminal.print_result(result, out, as_json)
    if result.verdict is Verdict.UNDERPOWERED:
        complain("the claim could not be tested: underpowered", "warning")
    return result.exit_code


def selftest_of_mechanisms(seed: int, results: Path | None, as_json: bool) -> int:
    """The zoo of functions: a line for each as soon as it is audited, and the counts."""
    from dpaudit.mechanism.zoo import run
    from dpaudit.reports.published import write_tables

    found, entries = [], run.zoo()
    with progress_bars(quiet=False) as on_progress:
        for one in counted(on_progress, "functions", run.audited(entries, seed), len(entries)):
            found.append(one)
            if not as_json:
                terminal.say(run.text(one))
    if results is not None:
        write_tables(results, "mechanisms", run.tables(found, seed))
    if as_json:
        rows = [dict(zip(run.COLUMNS, run.row(one), strict=True)) for one in found]
        terminal.say_json(json.dumps({"seed": seed, "mechanisms": rows}, indent=2))
    else:
        terminal.say(run.summary(found))
    return 0 if run.is_sound(found) else 1


def _shape(option: str, texts: list[str]) -> list[int] | list[list[int]]:
    """The shapes of a repeated option. Raises ConfigError."""
    try:
        rows = [text.strip("()[] ").split(",") for text in texts]
        shapes = [[int(part) for part in row if part.strip()] for row in rows]
    except ValueError:
        said = f'{option}: expected numbers with commas, as 784,10; got "{" ".join(texts)}"'
        raise ConfigError("DPA014", said) from None
    return shapes[0] if len(shapes) == 1 else shapes


def _toml(content: dict[str, Any]) -> str:
    """The TOML file that `dpaudit audit` reads."""
    tables = {"[mechanism]": content["mechanism"], "[[claim]]": content["claim"][0]}
    lines = [f"seed = {content['seed']}"]
    for heading, table in tables.items():
        lines += ["", heading]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"
