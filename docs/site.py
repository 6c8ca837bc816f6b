"""Pages of the documentation site that are made from the code, and links that leave the site.

mkdocs.yml names this file under ``hooks``; mkdocs calls the functions that begin with ``on_``.
Everything here is made when the site is built, so that it cannot differ from the code. The pages of
``COMMITTED`` are in the repository too: `python docs/site.py` writes them.
"""

import inspect
import io
import posixpath
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

from dpaudit.codes import entries, page
from dpaudit.commands.cli import app
from dpaudit.files import (
    benchmark_file,
    benchmark_result,
    claims_file,
    config,
    finding,
    options,
    result,
)
from dpaudit.files.claim import Claim
from dpaudit.files.glossary import ENTRIES
from dpaudit.files.mechanism_file import MechanismConfig, MechanismOptions
from dpaudit.files.published import ExperimentResult, ExperimentRuns, ResultTables
from dpaudit.files.threat import Region, ThreatModel
from dpaudit.registry import PluginFamily, installed, load_plugin
from dpaudit.reports import html, published

ROOT = Path(__file__).parents[1]
COMMITTED = ("reference/", "glossary.md")
TOP_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")  # of the repository
ROOMS = ("defense", "attack", "conformance", "accounting", "statistics", "information")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
NOT_PROSE = r"^( *)```.*?^\1```|<!--.*?-->|^(?:[#|]|    |:::)[^\n]*|`[^`]*`|!?\[[^\]]*\]\([^)]*\)"
COMMON = {"function", "scope", "user", "view"}  # terms that are ordinary words as well

AUDIT_FILE = {
    "top of the file": config.AuditConfig,
    "[data]": config.DataConfig,
    "[data] partition": get_args(get_args(options.PartitionOptions)[0]),
    "[data] sensors": options.SensorOptions,
    "[graph]": get_args(get_args(options.GraphOptions)[0]),
    "[model]": config.ModelConfig,
    "[[claim]]": Claim,
    "[[threat_model]]": ThreatModel,
    "[[threat_model]] region": Region,
}
CLAIMS_FILE = {
    "top of the file": claims_file.Claims,
    "[[check]]": claims_file.Check,
    "[[check.threshold]]": claims_file.Threshold,
}
BENCHMARK_FILE = {
    "top of the file": benchmark_file.Benchmark,
    "[[axis]]": benchmark_file.Axis,
    "[tuning]": benchmark_file.Tuning,
    "[[tuning.factor]]": benchmark_file.Factor,
    "benchmark.json": benchmark_result.BenchmarkResult,
    "benchmark.json cells[]": benchmark_result.Cell,
}
MECHANISM_FILE = {
    "top of the file": MechanismConfig,
    "[mechanism]": MechanismOptions,
    "[[claim]]": Claim,
}
RESULT = {
    "audit.json": result.AuditResult,
    "claims[]": result.JudgedClaim,
    "claims[].restated": result.Restated,
    "findings[]": finding.Finding,
    "findings[].metrics": finding.Metric,
    "threat_models[]": result.ThreatModelSummary,
    "graph": result.GraphSummary,
    "utility": result.Curve,
    "provenance": result.Provenance,
}


def generated() -> dict[str, Callable[[], str]]:
    """Every page that is made here, by its path within docs/, and what makes it."""
    return {
        "glossary.md": glossary,
        "reference/commands.md": commands,
        "reference/audit-file.md": partial(tables, "The audit file", _AUDIT_FILE, AUDIT_FILE),
        "reference/claims-file.md": partial(tables, "The claims file", _CLAIMS_FILE, CLAIMS_FILE),
        "reference/benchmark-file.md": partial(
            tables, "The benchmark file", _BENCHMARK_FILE, BENCHMARK_FILE
        ),
        "reference/mechanism-file.md": partial(
            tables, "The file of a function", _MECHANISM_FILE, MECHANISM_FILE
        ),
        "reference/defense-options.md": partial(
            plugins, "defenses", "Options of defenses", "[defense]"
        ),
        "reference/attack-options.md": partial(
            plugins, "attacks", "Options of attacks", "[[attack]]"
        ),
        "reference/result.md": lambda: tables("audit.json", _RESULT, RESULT) + vocabulary(),
        "reference/python.md": python,
        **results(),
        "errors/index.md": codes,
        **{f"errors/{code}.md": partial(page, code) for code in entries()},
        **{name: partial((ROOT / name).read_text, "utf-8") for name in TOP_PAGES},
    }


def results() -> dict[str, Callable[[], str]]:
    """A page for each experiment and each set of tables whose data lie in docs/results."""
    pages: dict[str, Callable[[], str]] = {}
    runs: dict[str, list[ExperimentResult]] = {}
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        if '"tables": [' in path.read_text("utf-8"):
            made = partial(published.page_of_tables, path.stem, ResultTables.read(path))
            pages[f"results/{path.stem}.md"] = made
        else:
            for run in ExperimentRuns.read(path).runs:
                runs.setdefault(run.name, []).append(run)
    for name, own in runs.items():
        pages[f"results/{name}.md"] = partial(published.page, name, own)
    return dict(sorted(pages.items()))


def on_config(config: Any) -> Any:
    """mkdocs: the pages of results join the navigation."""
    config["nav"].insert(-2, {"Results": list(results())})
    return config


def committed() -> dict[str, Callable[[], str]]:
    """The pages of ``generated`` that the repository has as well."""
    return {path: text for path, text in generated().items() if path.startswith(COMMITTED)}


def reports() -> dict[str, Callable[[], str]]:
    """The reports of the gallery, from results that `python docs/gallery.py` keeps."""
    runs = sorted((ROOT / "docs" / "gallery").glob("*/audit.json"))
    return {f"reports/{run.parent.name}.html": partial(_report, run) for run in runs}


def _report(run: Path) -> str:
    return html.render(result.AuditResult.read(run), run.parent)


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: the pages of ``generated`` and the reports join those of the folder."""
    from mkdocs.structure.files import File

    for path, text in {**generated(), **reports()}.items():
        if stored := files.get_file_from_path(path):
            files.remove(stored)
        files.append(File.generated(config, path, content=text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs: links lead to pages of the site, and written pages link terms to the glossary."""
    path = page.file.src_uri
    written = not path.startswith(COMMITTED) and (ROOT / "docs" / path).exists()
    markdown = markdown.replace("<!-- rules -->", codes_from("2", "errors/"))
    markdown = re.sub(r"^<!--\n(:::.*?)\n-->$", r"\1", markdown, flags=re.M | re.S)
    return within_site(with_terms(markdown) if written else markdown, path)


def with_terms(markdown: str) -> str:
    """The text of a page in which the first use of each term of the glossary links to it."""
    terms = sorted(ENTRIES.keys() - COMMON, key=len, reverse=True)
    linked = set(COMMON)

    def with_link(found: re.Match[str]) -> str:
        term = (found["term"] or "").lower()
        if not term or term in linked:
            return found[0]
        linked.add(term)
        return f"[{found[0]}](glossary.md#{term.replace(' ', '-')})"

    term = rf"\b(?P<term>{'|'.join(map(re.escape, terms))})\b"
    return re.sub(f"{NOT_PROSE}|{term}", with_link, markdown, flags=re.M | re.S | re.I)


def within_site(markdown: str, page: str) -> str:
    """The text of a page with links as the site has them; ``page`` is its path within docs/."""

    def rewritten(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        place = in_repository(page, target)
        if place.startswith("docs/") or place in TOP_PAGES:
            here = posixpath.dirname(page) or "."
            return f"[{text}]({posixpath.relpath(place.removeprefix('docs/'), here)}{anchor})"
        return f"`{place}`" if text.strip("`") in place else f"{text} (`{place}`)"

    return LINK.sub(rewritten, markdown)


def in_repository(page: str, target: str) -> str:
    """Where a link of a page leads, from the root of the repository."""
    folder = "" if page in TOP_PAGES else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, target))


def glossary() -> str:
    """The words of reports and configs, as ``dpaudit explain`` says them."""
    entries = (f"## {name}\n\n{text}\n" for name, text in sorted(ENTRIES.items(), key=_by_word))
    return f"# Glossary\n\n{_GLOSSARY}\n\n" + "\n".join(entries)


def codes() -> str:
    """Every code with its title, and a link to its page."""
    parts = ["# Codes of errors and reasons", _CODES]
    kinds = (
        ("Errors", "0"),
        ("Reasons of verdicts, and notes", "1"),
        ("[Rules of lint](../lint.md)", "2"),
    )
    parts += [f"## {title}\n\n{codes_from(first)}" for title, first in kinds]
    return "\n\n".join(parts) + "\n"


def codes_from(first: str, folder: str = "") -> str:
    """The table of the codes whose number begins with a digit."""
    rows = (
        (f"[{code}]({folder}{code}.md)", entry.title)
        for code, entry in entries().items()
        if code[3] == first
    )
    return _table(("code", "it means"), rows)


def commands() -> str:
    """Every command with its arguments and options, from the program itself."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    parts = ["# Commands", _COMMANDS]
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"dpaudit {name}")
        usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
        rows = [record for p in command.params if (record := p.get_help_record(context))]
        parts += [f"## dpaudit {name}", f"`{usage}`", inspect.cleandoc(command.help or "")]
        parts += [_table(("option", "does"), ((f"`{flag}`", text) for flag, text in rows))]
    return "\n\n".join(parts) + "\n"


def tables(title: str, head: str, models: Mapping[str, Any]) -> str:
    """A page with a section for each table of a file, and in it a row for each key."""
    parts = [f"# {title}", head]
    for name, model in models.items():
        kinds = model if isinstance(model, tuple) else (model,)
        parts += [f"## {name}"]
        for kind in kinds:
            parts += [_doc(kind), keys(kind)]
    return "\n\n".join(parts) + "\n"


def plugins(family: PluginFamily, title: str, table: str) -> str:
    """A page with a section for each built-in plug-in of a family."""
    head = f"Each key stands in `{table}` beside `name`; those of every other class are refused."
    parts = [f"# {title}", head]
    for name, entry_point in sorted(installed(family).items()):
        if entry_point.value.startswith("dpaudit."):
            plugin = load_plugin(family, name)
            parts += [f"## {name}", _doc(plugin).partition("\n\n")[0], keys(plugin)]
    return "\n\n".join(parts) + "\n"


def keys(model: type[BaseModel]) -> str:
    """A row for each key of a model: what it takes, its default, what its comment says."""
    schema = model.model_json_schema(mode="validation")
    comments = dict(_comments(model))
    rows = []
    for name, field in model.model_fields.items():
        takes = _takes(schema["properties"][name], schema.get("$defs", {}))
        default = "required" if field.is_required() else _written(field.get_default())
        meaning = comments.get(name, "").replace("None:", "left out:")
        rows.append((f"`{name}`", takes, default, meaning))
    return _table(("key", "takes", "default", "is"), rows)


def vocabulary() -> str:
    """The roles of findings and the names of metrics, as audit.json spells them."""
    roles = dict(_comments(finding.Role))
    rows = ((f"`{role}`", finding.KINDS[role], roles.get(role.name, "")) for role in finding.Role)
    names = ", ".join(f"`{name}`" for name in finding.Name)
    return (
        f"\n## Roles of findings\n\n{_table(('role', 'kind', 'is'), rows)}\n"
        f"\n## Names of metrics\n\n{names}.\n"
    )


def python() -> str:
    """What code may call, a line for each name; the site shows signatures and docstrings too."""
    from dpaudit import audit, ledger, mechanism

    calls = {"dpaudit.audit": audit, "dpaudit.mechanism.audit": mechanism.audit}
    calls |= {
        "dpaudit.ledger.open": ledger.open,
        "dpaudit.files.result.AuditResult": result.AuditResult,
    }
    rows = ((f"`{name}`", _first_line(what)) for name, what in calls.items())
    parts = ["# Python", _PYTHON, _table(("call", "does"), rows)]
    parts += ["## dpaudit", _directive("dpaudit.commands.api.audit")]
    parts += [_RESULT_CLASS, "## dpaudit.mechanism", _directive("dpaudit.mechanism.source.audit")]
    parts += ["## dpaudit.ledger", _directive(f"dpaudit.ledger.budget\n    options: {_OF_A_ROOM}")]
    for room in ROOMS:
        package = import_module(f"dpaudit.{room}")
        doc = inspect.cleandoc(package.__doc__ or "")
        rows = ((f"`{name}`", _first_line(getattr(package, name))) for name in package.__all__)
        parts += [f"## dpaudit.{room}", doc, _table(("name", "is"), rows)]
        parts += [_directive(f"dpaudit.{room}\n    options: {_OF_A_ROOM}")]
    return "\n\n".join(parts) + "\n"


def _directive(what: str) -> str:
    """Signatures and docstrings of a name on the site; in the repository a comment."""
    return f"<!--\n::: {what}\n-->"


def _first_line(what: Any) -> str:
    own = inspect.isclass(what) or inspect.isroutine(what)
    doc = (inspect.getdoc(what) or "").partition("\n\n")[0] if own else "a constant"
    return doc.replace("``", "`").replace("][", "]\\[")


def _by_word(entry: tuple[str, str]) -> str:
    return entry[0].lower()


def _doc(model: type) -> str:
    """A docstring; what is indented in it, formulas and steps, stays as it is."""
    text = inspect.cleandoc(model.__dict__.get("__doc__") or "").replace("``", "`")
    return text.replace("][", "]\\[")  # an index is no link


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _comments(model: type) -> Iterator[tuple[str, str]]:
    """What the comment on each field's line says, a class's own after those of its bases."""
    for cls in reversed(model.__mro__):
        if cls.__module__.startswith("dpaudit."):
            yield from _own_comments(cls)


@cache
def _own_comments(cls: type) -> tuple[tuple[str, str], ...]:
    """Those of the lines of a class itself, which is a base of many."""
    found = []
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if named := re.match(r"    (\w+)(?:: | = )", lines[token.start[0] - 1]):
            found.append((named[1], token.string.lstrip("# ")))
    return tuple(found)


def _takes(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """What a key takes, in words, from its JSON Schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _takes(defs[name], defs) if "enum" in defs[name] else "a table"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{_toml(v)}`" for v in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema or "oneOf" in schema:
        parts = [_takes(part, defs) for part in schema.get("anyOf", schema.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(part for part in parts if part != "nothing"))
    if "prefixItems" in schema:
        return f"({', '.join(_takes(part, defs) for part in schema['prefixItems'])})"
    if schema.get("type") == "array":
        each = _takes(schema.get("items", {}), defs)
        return "tables" if each == "a table" else f"a list of {each}"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
    words |= {"object": "a table", "null": "nothing"}
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    limits = limits[1:] if "minimum" in schema and "exclusiveMinimum" in schema else limits
    return " ".join([words.get(schema.get("type", ""), "any"), ", ".join(limits)]).strip()


def _written(value: Any) -> str:
    """A default as a file would have it."""
    return "" if value is None or value == () or value == {} else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True, exclude_none=True) or value.model_dump()
    if isinstance(value, dict):
        pairs = (f"{key} = {_toml(part)}" for key, part in value.items() if part is not None)
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(part) for part in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


_GLOSSARY = "The same texts as `dpaudit explain TERM` prints."
_CODES = """Every error, every reason of a verdict and every rule of `dpaudit lint` has a code
that never changes its meaning. `dpaudit explain CODE` prints the same page in a terminal. In
Python, `error.code` is the code of an error, and `error.problems` lists all problems that were
found at once."""
_COMMANDS = """Exit codes of all: 0 nothing speaks against the claims; 1 a claim is refuted or
unsupported, and nothing else; 2 it could not run, one line for each problem, and whatever was not
foreseen, also where a plug-in ends the process; 130 interrupted."""
_AUDIT_FILE = """Every key is checked: an unknown one is an error with file, line and the nearest
known key. A relative path is relative to the file that names it. The keys of `[defense]` are on
[a page of their own](defense-options.md), those of `[[attack]]` [too](attack-options.md)."""
_CLAIMS_FILE = "What `dpaudit check` reads; [how it judges](../ci.md)."
_BENCHMARK_FILE = "What `dpaudit benchmark` reads and writes; [how it runs](../benchmark.md)."
_MECHANISM_FILE = "The audit of a single function; [how it works](../mechanism.md)."
_RESULT = """What an audit writes, and reports, checks and baselines read;
the same as [JSON Schema](../audit.schema.json). A number that is not finite is the text `inf`,
`-inf` or `nan`."""
_PYTHON = """What dpaudit offers to code. Whatever is not named here may change without a word in
the changelog."""
_OF_A_ROOM = "{show_root_heading: false, heading_level: 2}"
_RESULT_CLASS = (
    "<!--\n::: dpaudit.files.result.AuditResult\n    options:\n      members: "
    "[decided_by, sentence, exit_code, to_json, read]\n-->"
)


if __name__ == "__main__":
    for name, make in committed().items():
        (ROOT / "docs" / name).parent.mkdir(exist_ok=True)
        (ROOT / "docs" / name).write_text(make(), "utf-8")
