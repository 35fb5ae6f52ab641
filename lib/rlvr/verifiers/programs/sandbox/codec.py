"""Values between judge and program: JSON with tags, so that only plain data crosses.

A value arrives as its exact built-in type: of a subclass (an ``int`` whose ``==`` always holds) nothing but
the payload is sent, a named tuple arrives as a tuple. What is not plain data arrives as a handle that the
judge can call, read and iterate over, never as something that takes part in a comparison.
"""

from __future__ import annotations

import base64
import builtins
import collections
import datetime
import decimal
import fractions
import json
import sys
from collections.abc import Callable
from typing import Any

_ATOMS = frozenset((int, float, str, bool, type(None)))
_BIG = 10**4000  # decimal digits take quadratic time; larger numbers go in hexadecimal
_TYPES = {kind.__name__: kind for kind in vars(builtins).values() if isinstance(kind, type)}
_NUMPY_KINDS = "biufcSUmM"
_DATES = (datetime.datetime, datetime.date, datetime.time)


class Unencodable(TypeError):
    """A value that is no plain data, where there is nobody to hand a handle to."""


def dumps(message: dict) -> bytes:
    return json.dumps(message, separators=(",", ":"), check_circular=False).encode("ascii")


def loads(data: bytes) -> dict:
    """Raises ValueError for what :func:`dumps` did not write, numbers with very many digits included."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(4300)
    try:
        return json.loads(data)
    finally:
        sys.set_int_max_str_digits(digits)


def encode(value: Any, handle: Callable[[Any], Any] | None = None) -> Any:
    """Value to what JSON holds: atoms as they are, lists as lists, the rest as ``{tag: payload}``.

    ``handle`` gets what is no plain data and answers the payload of a ``{"h": ...}``.
    """
    kind = type(value)
    if kind is int:
        return value if -_BIG < value < _BIG else {"i": hex(value)}
    if kind in _ATOMS:
        return value
    if kind is list:
        return value if _flat(value) else [encode(item, handle) for item in value]
    if kind is tuple:
        return {"t": _items(value, handle)}
    if kind is dict:
        return {"d": _pairs(value, handle)}
    return _encode_other(value, kind, handle)


def _flat(items: Any) -> bool:
    """Whether all items are atoms as JSON writes them; fast, for lists of a million numbers."""
    kinds = set(map(type, items))
    if kinds == {int}:
        return -_BIG < min(items) and max(items) < _BIG
    return _ATOMS.issuperset(kinds) and (
        int not in kinds or not any(type(x) is int and not -_BIG < x < _BIG for x in items)
    )


def _items(items: Any, handle: Callable | None) -> list:
    items = list(items)
    return items if _flat(items) else [encode(item, handle) for item in items]


def _pairs(mapping: dict, handle: Callable | None) -> list:
    return [_items(dict.keys(mapping), handle), _items(dict.values(mapping), handle)]


def _encode_other(value: Any, kind: type, handle: Callable | None) -> Any:
    mro = kind.__mro__
    if bool in mro or int in mro:
        return encode(int.__int__(value))
    if float in mro:
        return float.__float__(value)
    if str in mro:
        return str.__str__(value)
    if complex in mro:
        return {"c": [value.real, value.imag]}
    if bytes in mro or bytearray in mro:
        return {"B" if bytearray in mro else "b": base64.b64encode(value).decode("ascii")}
    if tuple in mro:
        return {"t": _items(tuple.__iter__(value), handle)}
    if collections.OrderedDict in mro:
        return {"O": _pairs(value, handle)}
    if collections.Counter in mro:
        return {"C": _pairs(value, handle)}
    if dict in mro:
        return {"d": _pairs(value, handle)}
    if list in mro:
        return _items(list.__iter__(value), handle)
    if set in mro or frozenset in mro:
        return {"s" if set in mro else "f": _items(value, handle)}
    if kind is type and _TYPES.get(value.__name__) is value:
        return {"y": value.__name__}
    if kind is collections.deque:
        return {"q": [_items(value, handle), value.maxlen]}
    if kind is range:
        return {"r": [value.start, value.stop, value.step]}
    if kind is decimal.Decimal:
        return {"D": str(value)}
    if kind is fractions.Fraction:
        return {"F": [value.numerator, value.denominator]}
    if kind in _DATES:
        return {"T": [_DATES.index(kind), value.isoformat()]}
    if kind is datetime.timedelta:
        return {"L": [value.days, value.seconds, value.microseconds]}
    array = _encode_numpy(value)
    if array is not None:
        return array
    if handle is None:
        raise Unencodable(f"{kind.__name__} is no plain data")
    return {"h": handle(value)}


def _encode_numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    scalar = isinstance(value, numpy.generic)
    array = numpy.asarray(value)
    if array.dtype.kind not in _NUMPY_KINDS or array.dtype.names:
        return None
    data = base64.b64encode(numpy.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"n": [array.dtype.str, list(array.shape), data, scalar]}


def decode(data: Any, handle: Callable[[Any], Any] | None = None) -> Any:
    """Inverse of :func:`encode`; ``handle`` makes the stand-in of a handle's payload."""
    if type(data) is list:
        return data if _ATOMS.issuperset(map(type, data)) else [decode(item, handle) for item in data]
    if type(data) is not dict:
        return data
    ((tag, payload),) = data.items()
    if tag == "t":
        return tuple(decode(payload, handle))
    if tag in _MAPPINGS:
        keys, values = (decode(part, handle) for part in payload)
        return _MAPPINGS[tag](zip(keys, values, strict=True))
    if tag == "s":
        return set(decode(payload, handle))
    if tag == "f":
        return frozenset(decode(payload, handle))
    if tag == "q":
        return collections.deque(decode(payload[0], handle), payload[1])
    if tag == "h":
        if handle is None:
            raise Unencodable("a handle, where plain data was expected")
        return handle(payload)
    return _PLAIN[tag](payload)


def _numpy(payload: list) -> Any:
    numpy = sys.modules["numpy"]  # loaded where the program or the tests name it
    dtype, shape, data, scalar = payload
    if numpy.dtype(dtype).kind not in _NUMPY_KINDS:
        raise ValueError(f"an array of {dtype}")
    array = numpy.frombuffer(base64.b64decode(data), numpy.dtype(dtype)).reshape(shape).copy()
    return array[()] if scalar else array


def _counter(pairs: Any) -> collections.Counter:
    return collections.Counter(dict(pairs))


_MAPPINGS = {"d": dict, "O": collections.OrderedDict, "C": _counter}
_PLAIN = {
    "i": lambda p: int(p, 16),
    "y": _TYPES.__getitem__,
    "c": lambda p: complex(*p),
    "b": base64.b64decode,
    "B": lambda p: bytearray(base64.b64decode(p)),
    "r": lambda p: range(*p),
    "D": decimal.Decimal,
    "F": lambda p: fractions.Fraction(*p),
    "T": lambda p: _DATES[p[0]].fromisoformat(p[1]),
    "L": lambda p: datetime.timedelta(*p),
    "n": _numpy,
}
