"""What is wrong with a file's content, one line each: file, line, key, and the nearest name."""

from collections.abc import Callable, Iterable, Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dpaudit.errors import MOST_LINES, ConfigError, DpauditError, Problem, nearest, shortened

from .documents import broken, line_of, read_json, reason

FileKey = tuple[str | int, ...]
FileProblem = tuple[FileKey, Problem]
_Model = TypeVar("_Model", bound=BaseModel)
LONGEST_VALUE = 100  # characters of a value that is shown in an error
_CODES = {  # pydantic's type of a problem -> code
    "extra_forbidden": "DPA001",
    "missing": "DPA002",
    "union_tag_not_found": "DPA002",
    "int_from_float": "DPA003",
    "value_error": "DPA005",
    "literal_error": "DPA006",
    "union_tag_invalid": "DPA006",
}


def dotted(key: FileKey) -> str:
    """A key as people write it: claim[1].epsilon."""
    text = ""
    for part in key:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def located(path: Path, text: str, key: FileKey, problem: Problem) -> Problem:
    """A problem at a key of the file of this text, with the line that it is on."""
    line = line_of(text, key)
    where = f"{path}:{line}" if line else str(path)
    at = f"{where}: {dotted(key)}" if key else where
    return problem._replace(text=f"{at}: {problem.text}")


def refusal(
    path: Path, text: str, problems: Iterable[FileProblem], at: FileKey = ()
) -> ConfigError:
    """The first problems of the file of this text, found below the key ``at``, as one error."""
    found = list(problems)
    shown = [located(path, text, (*at, *key), problem) for key, problem in found[:MOST_LINES]]
    return ConfigError.of([*shown, *(problem for _, problem in found[MOST_LINES:])])


def read_model(
    path: Path,
    model: type[_Model],
    name: str,
    error: type[DpauditError],
    prepared: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content,
) -> _Model:
    """What a JSON file holds.

    Args:
        name: what such a file is called in the line of a damaged one: "an audit.json".
        error: raised if it is missing or damaged, with the first problem in one line.
        prepared: is given the file's object before it is checked, and may refuse its version.
    """
    try:
        content = prepared(read_json(path))
        return model.model_validate(content)
    except OSError as problem:
        raise error("DPA007", f"{path}: {reason(problem)}") from None
    except ValidationError as problem:
        key, first = next(problems_of(problem, model, content))
        raise error("DPA011", located(path, "", key, first).text) from None
    except JSONDecodeError as problem:
        is_part = problem.doc.lstrip().startswith("{")
        part, other = f"{name} {broken(problem.doc, problem)}", f"not {name} ({reason(problem)})"
        said = part if is_part else other
        raise error("DPA011", f"{path}: {said}") from None
    except ValueError as problem:
        raise error("DPA011", f"{path}: not {name} ({reason(problem)})") from None


def problems_of(
    error: ValidationError, model: type[BaseModel], content: dict[str, Any]
) -> Iterator[FileProblem]:
    """Each problem that pydantic found in ``content``, by its key; of the later ones, less."""
    problems = _of_unions(error.errors(include_url=False), content)
    for i, problem in enumerate(problems):
        if i >= MOST_LINES:
            yield problem["loc"], Problem(_code(problem["type"]), problem["type"])
            continue
        if problem["type"] == "too_short" and _inside(problem["loc"], problems):
            continue  # pydantic ignores the value, as it is wrong
        key = _key_in(content, problem["loc"])
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
            text = "expected a table"
        if problem["type"] == "extra_forbidden":
            siblings = _siblings(model, problem["loc"][:-1])
            text = f"unknown key{nearest(str(problem['loc'][-1]), siblings)}"
            text += f"; known here: {', '.join(siblings)}" if siblings else ""
        elif problem["type"] == "union_tag_invalid":
            key = (*key, problem["ctx"]["discriminator"].strip("'"))
            known = [tag.strip("' ") for tag in problem["ctx"]["expected_tags"].split(",")]
            tag = shortened(problem["ctx"]["tag"], LONGEST_VALUE)
            text = f'"{tag}" is not known{nearest(tag, known)}; known: {", ".join(known)}'
        elif problem["type"] == "tuple_type" and isinstance(problem["input"], dict):
            text = f"expected an array, whose tables begin with [[{dotted(key)}]]"
        elif problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
            least = problem["loc"][-1] + 1
            text = (
                f"expected {least} values, got {shortened(repr(problem['input']), LONGEST_VALUE)}"
            )
        elif problem["type"] != "missing" and not isinstance(problem["input"], dict):
            text += f", got {shortened(repr(problem['input']), LONGEST_VALUE)}"
        yield key, Problem(_code(problem["type"]), text)


def _code(kind: str) -> str:
    """The code for a kind of problem that pydantic names."""
    wrong_type = kind.endswith(("_type", "_parsing"))
    return _CODES.get(kind, "DPA003" if wrong_type else "DPA004")


def _of_unions(problems: list[ErrorDetails], content: dict[str, Any]) -> list[ErrorDetails]:
    """Merge problems of one value that fits none of several kinds into one problem."""
    found: list[ErrorDetails] = []
    for problem in problems:
        location = problem["loc"]
        is_kind = bool(location) and _key_in(content, location) == location[:-1]
        if is_kind and found and found[-1]["loc"][:-1] == location[:-1]:
            other = problem["msg"].removeprefix("Input should be ")
            found[-1] = found[-1] | {"msg": f"{found[-1]['msg']}, or {other}"}
        else:
            found.append(problem)
    return found


def _inside(location: FileKey, problems: list[ErrorDetails]) -> bool:
    """Whether some problem lies inside what is at a location."""
    n = len(location)
    return any(p["loc"][:n] == location and len(p["loc"]) > n for p in problems)


def _key_in(content: Any, location: FileKey) -> FileKey:
    """The part of pydantic's location that is in the file: without tags of unions."""
    key: list[str | int] = []
    for part in location:
        inside = (isinstance(content, dict) and part in content) or (
            isinstance(content, list) and isinstance(part, int) and part < len(content)
        )
        if inside:
            content = content[part]
            key.append(part)
    missing = bool(location) and (not key or location[-1] != key[-1])
    return (*key, location[-1]) if missing and isinstance(content, dict) else tuple(key)


def _siblings(model: type[BaseModel], location: FileKey) -> list[str]:
    """The keys that are known at a location: those of the last model met on the way to it."""
    current: Any = model
    for part in location:
        current = _step(current, part)
    models = models_in(current)
    return list(models[0].model_fields) if len(models) == 1 else []


def _step(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field is not None else annotation
    candidates = models_in(annotation)
    fields = ((m, get_args(f.annotation)) for m in candidates for f in m.model_fields.values())
    tagged = [m for m, values in fields if part in values]  # literals are the tags of a union
    return tagged[0] if tagged else (candidates[0] if len(candidates) == 1 else annotation)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation names, of a union each."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in models_in(argument)]
