"""Dataclasses to JSON values and back, by their type hints; whatever a file holds that fits no field is left alone.

Text that is not UTF-8 stays: json writes its surrogate escapes as `\\udcNN` and reads them back.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from rtdebug.errors import RtdebugError

T = TypeVar("T")
Decoder = Callable[[Any], Any]


class FormError(RtdebugError):
    """A value that is not what this version of rtdebug writes there."""


def to_plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """A dataclass, with all in it, as what json.dumps takes. Keys of mappings become text."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], value: object) -> T:
    """The inverse of to_plain() for a dataclass. Raises FormError."""
    try:
        hint: Any = kind
        result: T = _decoder(hint)(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FormError(f"not what rtdebug writes: {error}", "was it changed, or made by a newer rtdebug?") from None
    return result


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - the class of a dataclass
    return tuple(field.name for field in fields(kind))


@lru_cache
def _decoder(kind: Any) -> Decoder:  # noqa: ANN401 - any type hint
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _optional(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is float:
        return lambda value: float(_checked(value, (int, float)))
    if kind is int:
        return _integer
    if kind in (str, bool):
        return lambda value: _checked(value, (kind,))
    return lambda value: value


def _optional(arguments: tuple[Any, ...]) -> Decoder:
    (kind,) = (each for each in arguments if each is not type(None))
    decode = _decoder(kind)
    return lambda value: None if value is None else decode(value)


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    if arguments[1:] == (...,):
        decode = _decoder(arguments[0])
        return lambda value: tuple([decode(item) for item in _checked(value, (list,))])
    decoders = [_decoder(argument) for argument in arguments]
    return lambda value: tuple(decode(item) for decode, item in zip(decoders, value, strict=True))


def _mapping(arguments: tuple[Any, ...]) -> Decoder:
    of_key: Decoder = int if arguments[0] is int else str
    decode = _decoder(arguments[1])
    return lambda value: {of_key(key): decode(item) for key, item in _checked(value, (dict,)).items()}


def _dataclass(kind: type) -> Decoder:
    hints = typing.get_type_hints(kind)
    decoders = [(field, _decoder(hints[field.name])) for field in fields(kind)]

    def decode(value: Any) -> object:  # noqa: ANN401
        given = _checked(value, (dict,))
        return kind(**{field.name: read(given[field.name]) for field, read in decoders if _is_given(field, given)})

    return decode


def _is_given(field: Field[Any], given: Mapping[str, object]) -> bool:
    """A field that an older rtdebug did not write has a default."""
    if field.name in given:
        return True
    if field.default is MISSING and field.default_factory is MISSING:
        raise KeyError(f"{field.name} is missing")
    return False


def _integer(value: Any) -> int:  # noqa: ANN401
    """All figures of the kernel fit 64 bits, with or without sign; so a reader need not fear larger ones."""
    number: int = _checked(value, (int,))
    if not -(2**63) <= number < 2**64:
        raise ValueError("a number of more than 64 bits")
    return number


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:  # noqa: ANN401
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{value!r:.60} is not of type {kinds[0].__name__}")
    return value
