"""TOML tables to frozen attrs classes and back, strictly, with all problems of a file at once.

cattrs does the walking. Added to it: no silent conversion (`"3"` for 3, `2.9` for an int), the rules of the attrs
validators checked field by field so that none hides another, `kind` choosing among classes, sizes and times with
their units, and messages that name the path, the rule and the value.
"""

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import ClassValidationError, Converter, IterableValidationError
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, override

from kvsim.rules import Consistent, Contradiction, OneOf, shown
from kvsim.study.toml import toml_text
from kvsim.units import parse_bandwidth, parse_bytes, parse_duration_ns

T = TypeVar("T")

Kinds = Mapping[str, type[Any]]
Units = Mapping[str, Callable[[int], Any]]
"""What the `kind` key of a table may say, and the class it then stands for."""

_LARGEST_NUMBER = 1e300

_MOST_ITEMS = 5
"""Of the wrong items of one list, so many are named."""

_PARSERS = {"bytes": parse_bytes, "bytes/s": parse_bandwidth, "ns": parse_duration_ns}


class StructureError(Exception):
    """`problems` has a sentence each: path, rule, value."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class TableReader:
    """Structures tables; a union all of whose members are in one of `kinds` is told apart by its `kind` key."""

    def __init__(self, *kinds: Kinds) -> None:
        self._kinds = kinds
        converter = self._converter = Converter(detailed_validation=True, forbid_extra_keys=True)
        for primitive, read in _PRIMITIVES.items():
            converter.register_structure_hook(primitive, read)
        converter.register_structure_hook_func(_is_a(Literal), _read_literal)
        converter.register_structure_hook_factory(attrs.has, self._table_hook)
        converter.register_structure_hook_func(lambda type_: self._kinds_of(type_) is not None, self._read_kind)
        converter.register_structure_hook_func(_is_a(tuple), self._read_list)

    def read(self, table: object, cls: type[T]) -> T:
        """Raises StructureError with all problems of the table."""
        try:
            return self._converter.structure(table, cls)
        except (ClassValidationError, IterableValidationError) as error:
            raise StructureError(_problems(error, "")) from None
        except ValueError as error:
            raise StructureError([str(error)]) from None

    def units(self, table: Mapping[str, Any], cls: type[Any]) -> dict[str, str]:
        """The unit of each key of a table that has one, by its dotted name: "engine.timeout" is in "ns".

        The table is as `table_of` writes it; what the class does not know is passed over.
        """
        found = {}
        for attribute in attrs.fields(attrs.resolve_types(cls)):
            value = table.get(attribute.name)
            unit = attribute.metadata.get("unit")
            if unit is not None and value is not None:
                found[attribute.name] = unit
            for where, inner, type_ in _tables_in(attribute.name, value, attribute.type):
                inner_cls = self._class_for(inner, type_)
                if inner_cls is not None:
                    found |= {f"{where}.{name}": unit for name, unit in self.units(inner, inner_cls).items()}
        return found

    def words(self, table: Mapping[str, Any], cls: type[Any]) -> dict[str, tuple[str, ...]]:
        """What each key may say that may say only some words, by its dotted name: "engine.policy", say.

        Of tables inside of the table, which may be wrong in any way, those that are there are looked at.
        """
        found = {}
        for attribute in attrs.fields(attrs.resolve_types(cls)):
            if words := _words_of(attribute):
                found[attribute.name] = words
            for where, inner, type_ in _tables_in(attribute.name, table.get(attribute.name), attribute.type):
                if (kinds := self._kinds_of(type_)) is not None:
                    found[f"{where}.kind"] = tuple(kinds)
                inner_cls = self._class_for(inner, type_)
                if inner_cls is not None:
                    found |= {f"{where}.{name}": words for name, words in self.words(inner, inner_cls).items()}
        return found

    def _class_for(self, table: Mapping[str, Any], type_: Any) -> type[Any] | None:
        kinds = self._kinds_of(type_)
        if kinds is not None:
            return kinds.get(str(table.get("kind")))
        return next((member for member in (type_, *get_args(type_)) if attrs.has(member)), None)

    def _table_hook(self, cls: type[Any]) -> Callable[[Any, Any], Any]:
        attributes = attrs.fields(attrs.resolve_types(cls))
        hooks = {a.name: self._field_hook(a) for a in attributes if a.metadata.get("in_file", True)}
        overrides: dict[str, Any] = {
            a.name: override(struct_hook=hooks[a.name]) if a.name in hooks else override(omit=True) for a in attributes
        }
        structure = make_dict_structure_fn(cls, self._converter, **overrides)

        def read_table(value: Any, type_: Any) -> Any:
            if not isinstance(value, dict):
                raise ValueError(f"must be a table, got {shown(value)}")
            try:
                return structure(value, type_)
            except ClassValidationError as error:
                if not issubclass(cls, Consistent) or _is_complete(error):
                    raise
                contradictions = cls.contradictions(_as_far_as_sound(value, attributes, hooks))
                more = [Contradiction(contradictions)] if contradictions else []
                raise ClassValidationError(error.message, [*error.exceptions, *more], cls) from None

        return read_table

    def _field_hook(self, attribute: "attrs.Attribute[Any]") -> Callable[[Any, Any], Any]:
        """Structure one field and check its rules, so that a class reports all of its fields."""
        parse = attribute.metadata.get("parse") or _PARSERS.get(attribute.metadata.get("unit", ""))

        def read_field(value: Any, type_: Any) -> Any:
            if parse is not None:
                try:
                    structured: Any = parse(value)
                except ValueError as error:
                    raise ValueError(f"{error}, got {shown(value)}") from None
            else:
                if _is_huge(value) and attribute.validator is not None:
                    attribute.validator(None, attribute, value)  # which knows what it may be
                structured = self._converter.structure(value, type_)
            if attribute.validator is not None:
                attribute.validator(None, attribute, structured)
            return structured

        return read_field

    def _kinds_of(self, type_: Any) -> Kinds | None:
        """The kinds that a union such as `Fixed | Uniform` or `Fixed | Uniform | None` chooses from."""
        if not _is_union(type_):
            return None
        members = set(get_args(type_)) - {types.NoneType}
        return next((kinds for kinds in self._kinds if members == set(kinds.values())), None)

    def _read_kind(self, value: Any, type_: Any) -> Any:
        kinds = self._kinds_of(type_)
        assert kinds is not None, "only called for unions that have kinds"
        if not isinstance(value, dict):
            raise ValueError(f"must be a table with a kind, got {shown(value)}")
        if "kind" not in value:
            raise ValueError(f"needs a kind: one of {', '.join(kinds)}")
        kind = value["kind"]
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"must have a kind that is one of {', '.join(kinds)}, got {shown(kind)}")
        return self._converter.structure({k: v for k, v in value.items() if k != "kind"}, kinds[kind])

    def _read_list(self, value: Any, type_: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"must be a list, got {shown(value)}")
        item_type = get_args(type_)[0]
        items, errors = [], []
        for index, item in enumerate(value):
            try:
                items.append(self._converter.structure(item, item_type))
            except Exception as error:
                error.add_note(IterableValidationNote("", index, item_type))
                errors.append(error)
        if errors:
            raise IterableValidationError("a list", errors[:_MOST_ITEMS], type_)
        return tuple(items)


def _is_complete(error: ClassValidationError) -> bool:
    """Whether all fields were sound, so that the class itself has spoken."""
    return any(isinstance(inner, Contradiction) for inner in error.exceptions)


def _as_far_as_sound(
    table: dict[str, Any], attributes: Any, hooks: Mapping[str, Callable[[Any, Any], Any]]
) -> dict[str, Any]:
    """Values of all fields: structured, or the default, or as written where that broke a rule."""
    values = {}
    for attribute in attributes:
        name = attribute.name
        if name not in table or name not in hooks:
            default = attribute.default
            values[name] = None if isinstance(default, attrs.Factory) or default is attrs.NOTHING else default  # type: ignore[arg-type]  # Factory is a class
            continue
        try:
            values[name] = hooks[name](table[name], attribute.type)
        except Exception:  # reported already, whatever it was
            values[name] = table[name]
    return values


def table_of(instance: Any, *kinds: Kinds, units: Units | None = None) -> dict[str, Any]:
    """The table that describes an attrs instance, with defaults filled in and `kind` where it chose the class.

    `units` says how whole numbers of a unit ("ns", "bytes", "bytes/s") are written, where that is not as numbers.
    """
    names = {cls: name for each in kinds for name, cls in each.items()}
    table: dict[str, Any] = {}
    if type(instance) in names:
        table["kind"] = names[type(instance)]
    for attribute in attrs.fields(type(instance)):
        value = getattr(instance, attribute.name)
        if value is None or not attribute.metadata.get("in_file", True):
            continue
        write = (units or {}).get(attribute.metadata.get("unit", ""))
        table[attribute.name] = _value_of(value, *kinds, units=units) if write is None else write(value)
    return table


def _value_of(value: Any, *kinds: Kinds, units: Units | None) -> Any:
    if attrs.has(type(value)):
        return table_of(value, *kinds, units=units)
    return [_value_of(item, *kinds, units=units) for item in value] if isinstance(value, tuple) else value


def _tables_in(name: str, value: Any, type_: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """A value that is a table, or those of a list, each with its name and type."""
    if isinstance(value, Mapping):
        yield name, value, type_
    elif isinstance(value, Sequence) and not isinstance(value, str):
        lists = [member for member in (type_, *get_args(type_)) if get_origin(member) is tuple]
        for index, item in enumerate(value):
            for list_type in lists:
                yield from _tables_in(f"{name}[{index}]", item, get_args(list_type)[0])


def _words_of(attribute: "attrs.Attribute[Any]") -> tuple[str, ...]:
    """What a key may say, where it may say only some words; () where it may say more."""
    rule = getattr(attribute.validator, "validator", attribute.validator)  # `optional` has one inside
    if isinstance(rule, OneOf):
        return rule.words
    for member in get_args(attribute.type) if _is_union(attribute.type) else (attribute.type,):
        if get_origin(member) is Literal:
            return get_args(member)
        if member is bool:
            return toml_text(True), toml_text(False)
    return ()


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in (types.UnionType, Union)


def _is_a(origin: Any) -> Callable[[Any], bool]:
    return lambda type_: get_origin(type_) is origin


def _read_int(value: Any, _type: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"must be a whole number, got {shown(value)}")
    return value


def _is_huge(value: Any) -> bool:
    """A number that is one, but larger than any that is read."""
    return type(value) in (int, float) and _LARGEST_NUMBER < abs(value) < math.inf


def _read_float(value: Any, _type: Any) -> float:
    if _is_huge(value):
        raise ValueError(f"must be at most {_LARGEST_NUMBER:g} in size, got {shown(value)}")
    if type(value) not in (int, float) or not abs(value) <= _LARGEST_NUMBER:
        raise ValueError(f"must be a number, got {shown(value)}")
    return float(value)


def _read_bool(value: Any, _type: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"must be true or false, got {shown(value)}")
    return value


def _read_str(value: Any, _type: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"must be a string, got {shown(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"must be text without null characters and surrogates, got {shown(value)}")
    return value


_PRIMITIVES: dict[type[Any], Callable[[Any, Any], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
}


def _read_literal(value: Any, type_: Any) -> Any:
    known = get_args(type_)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"must be one of {', '.join(known)}, got {shown(value)}")
    return value


def _problems(error: ClassValidationError | IterableValidationError, path: str) -> list[str]:
    """A sentence for each problem, in the order in which the class lists its fields."""
    problems = []
    for inner in error.exceptions:
        notes = getattr(inner, "__notes__", [])
        name = next((note.name for note in notes if hasattr(note, "name")), None)
        index = next((note.index for note in notes if isinstance(note, IterableValidationNote)), None)
        where = ".".join(part for part in (path, name) if part)
        if isinstance(inner, ClassValidationError | IterableValidationError):
            problems += _problems(inner, where if index is None else f"{where}[{index}]")
        elif isinstance(inner, ForbiddenExtraKeysError):
            problems += [_unknown_key(key, inner.cl, where) for key in sorted(inner.extra_fields)]
        elif isinstance(inner, KeyError):
            problems.append(f"{where} is missing")
        elif index is not None:
            problems.append(f"{where}[{index}] {inner}")
        elif name is not None and str(inner).startswith(f"{name}["):
            problems.append(f"{where}{str(inner).removeprefix(name)}")
        elif name is not None:
            problems.append(f"{where} {str(inner).removeprefix(f'{name} ')}")
        else:
            sentences = inner.sentences if isinstance(inner, Contradiction) else [str(inner)]
            problems += [f"{where}: {sentence}" if where else sentence for sentence in sentences]
    return problems


def _unknown_key(key: str, cls: type[Any], path: str) -> str:
    key = key if key.isprintable() and len(key) < 80 else shown(key)
    known = [a.name for a in attrs.fields(cls) if a.metadata.get("in_file", True)]
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"{path}.{key}: unknown key ({hint})" if path else f"{key}: unknown key ({hint})"
