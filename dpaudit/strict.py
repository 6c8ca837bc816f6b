"""The base of everything that is written in an audit file or a result file."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

_NUMBERS = {int, float}


class _Word:
    """Where a number belongs: true, or a text such as "0.5", which pydantic would count as one."""

    def __init__(self, value: object) -> None:
        self._said = value if isinstance(value, str) else str(value).lower()

    def __repr__(self) -> str:
        return repr(self._said)


class Strict(BaseModel):
    """A frozen value whose keys and types are checked: an unknown key is an error.

    A number is written as one: neither true nor a text counts as a number, and no text as true or
    false. An integer is a number, a list is a tuple, and the text of a path is that path.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _words_are_no_numbers(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        fields = cls.model_fields  # a model's property, which takes longer
        return {
            key: _as_word(value, *cls._words_of(key)) if key in fields else value
            for key, value in content.items()
        }

    @classmethod
    @cache
    def _words_of(cls, key: str) -> tuple[tuple[type, ...], frozenset[Any]]:
        """The types of which a value at a key is a word, and the texts that belong there."""
        field = cls.model_fields[key]
        types, texts = {*_types(field.annotation)}, frozenset(_literals(field.annotation))
        own = {type(one) for one in field.metadata} | types
        words: list[type] = []
        if types & _NUMBERS and not types & {bool, Any}:
            words.append(bool)
        if types & {*_NUMBERS, bool} and not own & {str, Any, BeforeValidator}:
            words.append(str)
        return tuple(words), texts


def _as_word(value: Any, words: tuple[type, ...], texts: frozenset[Any]) -> Any:
    if isinstance(value, list | tuple):
        parts = [_as_word(part, words, texts) for part in value]
        changed = any(word is not part for word, part in zip(parts, value, strict=True))
        return parts if changed else value
    return _Word(value) if isinstance(value, words) and value not in texts else value


def _types(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of; those of metadata are among them."""
    if get_origin(annotation) is Literal:
        return
    inside = get_args(annotation)
    if not inside:
        yield annotation if isinstance(annotation, type) or annotation is Any else type(annotation)
    for part in inside:
        yield from _types(part)


def _literals(annotation: Any) -> Iterator[Any]:
    """The values of the literals in an annotation."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from _literals(part)


def _shown(text: str) -> str:
    if not any(c.isprintable() and not c.isspace() for c in text):
        raise ValueError("shows nothing; expected a text that can be read")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_shown)]  # text that a reader can see
