"""Reading an ONNX file without its weights: the protobuf wire format, as far as initializers need it.

Parsing a model through protobuf copies every weight twice before a pass has seen it. Here the file is memory-mapped, the
large `raw_data` fields of the main graph's initializers are cut out, and the rest is parsed as usual; each cut field is
remembered as (offset, length) in the file. Wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

GRAPH_FIELD = 7  # ModelProto.graph
INITIALIZER_FIELD = 5  # GraphProto.initializer
NODE_FIELD = 1  # GraphProto.node
NAME_FIELD = 8  # TensorProto.name
RAW_DATA_FIELD = 9  # TensorProto.raw_data
LARGE = 4096  # bytes; smaller fields stay where they are

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a protobuf message."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: `number`, wire `kind`, [`start`, `end`) with its tag, and `value`, where its content begins."""

    number: int
    kind: int
    start: int
    value: int
    end: int


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            break
    raise WireError("truncated or oversized varint")


def fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[start:end]."""
    at = start
    while at < end:
        tag, value = read_varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            length, value = read_varint(data, value, end)
            stop = value + length
        elif kind == VARINT:
            _, stop = read_varint(data, value, end)
        elif kind in (FIXED64, FIXED32):
            stop = value + (8 if kind == FIXED64 else 4)
        else:
            raise WireError(f"unknown wire type {kind}")
        if stop > end or tag >> 3 == 0:
            raise WireError("a field reaches past the end of its message")
        yield Field(tag >> 3, kind, at, value, stop)
        at = stop


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def cut_weights(data: memoryview) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The model message without the large raw data of its graph's initializers, and where each of those lies in `data`:
    name -> (offset, length). Raises WireError when the bytes are no protobuf message."""
    cut: dict[str, tuple[int, int]] = {}
    model: list[bytes] = []
    for field in fields(data, 0, len(data)):
        if field.number == GRAPH_FIELD and field.kind == BYTES:
            graph = _cut_graph(data, field, cut)
            model.append(message_field(GRAPH_FIELD, graph))
        else:
            model.append(bytes(data[field.start : field.end]))
    return b"".join(model), cut


def _cut_graph(data: memoryview, graph: Field, cut: dict[str, tuple[int, int]]) -> bytes:
    parts: list[bytes] = []
    for field in fields(data, graph.value, graph.end):
        if field.number != INITIALIZER_FIELD or field.kind != BYTES or field.end - field.value < LARGE:
            parts.append(bytes(data[field.start : field.end]))
            continue
        tensor = list(fields(data, field.value, field.end))
        raw = [f for f in tensor if f.number == RAW_DATA_FIELD and f.kind == BYTES]
        names = [f for f in tensor if f.number == NAME_FIELD and f.kind == BYTES]
        if len(raw) != 1 or len(names) != 1:
            parts.append(bytes(data[field.start : field.end]))
            continue
        name = bytes(data[names[0].value : names[0].end]).decode("utf-8", "replace")
        cut[name] = (raw[0].value, raw[0].end - raw[0].value)
        kept = b"".join(bytes(data[f.start : f.end]) for f in tensor if f is not raw[0])
        parts.append(message_field(INITIALIZER_FIELD, kept))
    return b"".join(parts)
