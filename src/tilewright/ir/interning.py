"""Hash-consing for immutable nodes: building the same node twice gives the same object, so equality is identity.

Keys hold children by identity (children are interned already), so a look-up costs one tuple hash. The table holds nodes
weakly: a graph or kernel that nobody uses any more frees its nodes.
"""

from __future__ import annotations

import struct
import threading
import weakref
from typing import Any, ClassVar

_LOCK = threading.Lock()


def bits_key(value: Any) -> Any:
    """A key under which two scalars are the same constant: tells 0.0 from -0.0, 1 from 1.0 and True, and holds NaN."""
    if isinstance(value, float):
        return (float, struct.pack("<d", value))
    return (type(value), value)


class InternedMeta(type):
    """Metaclass of interned frozen dataclasses. The class may define `_key(*fields)` when a field needs a special key."""

    _table: weakref.WeakValueDictionary[Any, Any]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._table = weakref.WeakValueDictionary()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        key = made.intern_key()
        with _LOCK:
            found = cls._table.get(key)
            if found is not None:
                return found
            cls._table[key] = made
        return made


def field_key(value: Any) -> Any:
    """The part of an interning key that stands for one field: scalars by bits, tuples by element, nodes by identity."""
    if isinstance(value, (bool, int, float)):
        return bits_key(value)
    if isinstance(value, tuple):
        return tuple(field_key(item) for item in value)
    return value


class Interned(metaclass=InternedMeta):
    """Base of interned dataclasses; declare them with `@dataclass(frozen=True, slots=True, eq=False)`.

    Fields must be hashable; fields named in `_uninterned` (such as an origin) do not take part in identity.
    """

    __slots__ = ("__weakref__",)
    _uninterned: ClassVar[tuple[str, ...]] = ()

    def intern_key(self) -> Any:
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]
        return tuple(field_key(getattr(self, name)) for name in fields if name not in self._uninterned)
