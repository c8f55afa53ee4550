"""What products cost on a CPU with factors in float32 and in bfloat16, in nanoseconds, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from tilewright.graph.node import Node
from tilewright.graph.ops import Contract
from tilewright.graph.ops.contraction import parse_spec
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.rules.structure import extent_value
from tilewright.transform.bf16_products import Form

WIDENING = 2.0  # vector operations that make a vector of bfloat16 in memory one of float32
TILE_ROWS = 8.0  # rows that share it, where there are so many
HIDDEN = 0.6  # share of the shorter of computing and reading that passes while the other one does
KEPT = 0.5  # of a cache: weights up to this stay there from one use to the next, beside what else a model reads


@dataclass(frozen=True, slots=True)
class CpuProductCost:
    """`transform.bf16_products.ProductCost` of one core."""

    machine: Machine

    def product(self, node: Node, weights: int, form: Form, resident: int) -> float:
        if form == "operands":
            return inf
        held = prod(max(extent_value(dim), 1) for dim in node.inputs[weights].shape)
        rows = multiply_adds(node) / held
        adds = 2.0 * rows * held / estimated_peaks(self.machine).f32
        computing = adds * (1 + WIDENING / min(rows, TILE_ROWS)) if form == "weights" else adds
        reading = held * (2 if form == "weights" else 4) / self.bandwidth(resident // 2 if form == "weights" else resident)
        return max(computing, reading) + (1 - HIDDEN) * min(computing, reading)

    def bandwidth(self, resident: int) -> float:
        """GB/s at which weights come, of which so many bytes are read between two uses of each."""
        peaks, machine = estimated_peaks(self.machine), self.machine
        if resident <= KEPT * machine.l2.size:
            return peaks.l2
        return peaks.l3 if machine.l3 is not None and resident <= KEPT * machine.l3.size else peaks.memory


def multiply_adds(node: Node) -> float:
    """Those of a contraction or a dense convolution; sizes known only while running count as typical ones."""
    if isinstance(node.op, Contract):
        letters = parse_spec(node.op.spec)
        dims = dict(zip(letters.left + letters.right, (*node.inputs[0].shape, *node.inputs[1].shape)))
        return float(prod(max(extent_value(dim), 1) for dim in dims.values()))
    terms = node.inputs[1].shape[1:]
    return float(prod(max(extent_value(dim), 1) for dim in (*node.types[0].shape, *terms)))
