"""Hash-consing for immutable nodes: building the same node twice gives the same object, so equality is identity.

Keys hold children by identity (children are interned already), so a look-up costs one tuple hash. The table holds nodes
weakly: a graph or kernel that nobody uses any more frees its nodes.
"""

from __future__ import annotations

import struct
import sys
import threading
import weakref
from dataclasses import MISSING, fields
from itertools import compress
from typing import Any, ClassVar

# Re-entrant: garbage collection may drop entries while the same thread adds one.
_LOCK = threading.RLock()


class _Entry(weakref.ref[Any]):
    """A weak reference that knows where it is in its table."""

    __slots__ = ("key",)
    key: Any


class InternTable:
    """The one value of each key, held weakly. As `weakref.WeakValueDictionary`, with the two operations that interning needs, at a third of
    the time."""

    __slots__ = ("_drop", "_entries")

    def __init__(self) -> None:
        entries: dict[Any, _Entry] = {}
        lock, ending = _LOCK, sys.is_finalizing  # the names of modules are gone when the last nodes are freed, as Python ends

        def drop(entry: _Entry) -> None:
            if ending():  # keys could not be compared any more
                return
            with lock:
                if entries.get(entry.key) is entry:
                    del entries[entry.key]

        self._entries, self._drop = entries, drop

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Any) -> Any:
        """The value, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def add(self, key: Any, value: Any) -> Any:
        """The value that the table has for the key: `value`, unless another thread was faster."""
        with _LOCK:
            found = self.get(key)
            if found is not None:
                return found
            entry = _Entry(value, self._drop)
            entry.key = key
            self._entries[key] = entry
            return value


def bits_key(value: Any) -> Any:
    """A key under which two scalars are the same constant: tells 0.0 from -0.0, 1 from 1.0 and True, and holds NaN."""
    if isinstance(value, float):
        return (float, struct.pack("<d", value))
    return (type(value), value)


class InternedMeta(type):
    """Metaclass of interned frozen dataclasses."""

    _table: InternTable
    _names: tuple[str, ...]
    _defaults: tuple[Any, ...]  # MISSING where there is none
    _interned: tuple[bool, ...]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._table = InternTable()
        cls._interned = ()  # with the rest read when the first node is made: the dataclass decorator has not run yet

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._interned:
            cls._read_fields()
        made = None
        values = (*args, *cls._defaults[len(args) :])
        if kwargs or MISSING in values or len(values) != len(cls._names):
            made = super().__call__(*args, **kwargs)  # raises for a wrong number of arguments
            values = tuple([getattr(made, name) for name in cls._names])
        key = tuple(compress(values, cls._interned)) if cls._uninterned else values  # type: ignore[attr-defined]
        if cls._numbers:  # type: ignore[attr-defined]
            key = field_key(key)
        found = cls._table.get(key)
        return found if found is not None else cls._table.add(key, super().__call__(*values) if made is None else made)

    def _read_fields(cls) -> None:
        own = fields(cls)  # type: ignore[arg-type]
        cls._names = tuple([f.name for f in own])
        cls._defaults = tuple([f.default for f in own])
        cls._interned = tuple([f.name not in cls._uninterned for f in own])  # type: ignore[attr-defined]


_KINDS: dict[type, str] = {}  # of a field's value: "scalar", "tuple" or "node"


def field_key(value: Any) -> Any:
    """The part of an interning key that stands for one field: scalars by bits, tuples by element, nodes by identity."""
    kind = _KINDS.get(type(value)) or _kind_of(type(value))
    if kind == "node":
        return value
    return tuple([field_key(item) for item in value]) if kind == "tuple" else bits_key(value)


def _kind_of(type_: type) -> str:
    kind = _KINDS[type_] = "scalar" if issubclass(type_, (bool, int, float)) else "tuple" if issubclass(type_, tuple) else "node"
    return kind


class Interned(metaclass=InternedMeta):
    """Base of interned dataclasses; declare them with `@dataclass(frozen=True, slots=True, eq=False)`.

    Fields must be hashable; fields named in `_uninterned` (such as an origin) do not take part in identity. `_numbers`: some may hold
    numbers of several kinds, which must not be taken for each other.
    """

    __slots__ = ("__weakref__",)
    _uninterned: ClassVar[tuple[str, ...]] = ()
    _numbers: ClassVar[bool] = False
