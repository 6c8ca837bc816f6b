"""The base of everything that is written in an audit file or a result file."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """A frozen value whose keys and types are checked: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, content: Any) -> Any:
        """Python counts True as 1, and nobody means that: where numbers belong it is a word."""
        if not isinstance(content, dict):
            return content
        return {
            key: _as_word(value) if key in cls.model_fields and cls._takes_numbers(key) else value
            for key, value in content.items()
        }

    @classmethod
    @cache
    def _takes_numbers(cls, key: str) -> bool:
        types = {*_leaves(cls.model_fields[key].annotation)}
        return bool(types & {int, float}) and not types & {bool, Any}


def _as_word(value: Any) -> Any:
    if isinstance(value, list | tuple):
        words = [_as_word(part) for part in value]
        return (
            words
            if any(word is not part for word, part in zip(words, value, strict=True))
            else value
        )
    return str(value).lower() if isinstance(value, bool) else value


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of; values of literals and metadata are among them."""
    inside = get_args(annotation)
    if not inside:
        yield annotation if isinstance(annotation, type) or annotation is Any else type(annotation)
    for part in inside:
        yield from _leaves(part)


def _shown(text: str) -> str:
    if not any(c.isprintable() and not c.isspace() for c in text):
        raise ValueError("shows nothing; expected a text that can be read")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_shown)]  # that a reader can see
