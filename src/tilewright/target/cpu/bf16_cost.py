"""What products cost on a CPU with factors in float32 and in bfloat16, in nanoseconds, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from tilewright.graph.node import Node
from tilewright.graph.ops import BlockedConvolution, Contract
from tilewright.graph.ops.contraction import parse_spec
from tilewright.ir import dtypes
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.dots import matrix_instructions, multiplies_bf16, rounds_bf16
from tilewright.target.cpu.rules.matrix import STEPS, tile_steps
from tilewright.target.cpu.rules.structure import extent_value
from tilewright.transform.bf16_products import Form

WIDENING = 2.0  # vector operations that make a vector of bfloat16 in memory one of float32
ROUNDING = 16.0  # operations that round one number to bfloat16, where no instruction does
ROUNDED = 1.0  # where one does
TILE_ROWS = 8.0  # rows that share it, where there are so many
PAIRS_BESIDE_TILES = 0.6  # times the rate of float32 at which processors with tile instructions add pairs of products in vectors
TILES_REACH = 0.5  # of their peak, beside loads and stores of tiles
HIDDEN = 0.6  # share of the shorter of computing and reading that passes while the other one does
KEPT = 0.5  # of a cache: weights up to this stay there from one use to the next, beside what else a model reads


@dataclass(frozen=True, slots=True)
class CpuProductCost:
    """`transform.bf16_products.ProductCost` of one core."""

    machine: Machine

    def product(self, node: Node, weights: int, form: Form, resident: int) -> float:
        if form == "operands" and not (multiplies_bf16(self.machine) and takes_pairs(node, weights)):
            return inf
        held = prod(max(extent_value(dim), 1) for dim in node.inputs[weights].shape)
        rows = multiply_adds(node) / held
        peaks = estimated_peaks(self.machine)
        computing = 2.0 * rows * held / (self._operand_rate(node, weights) if form == "operands" else peaks.f32)
        if form == "weights":
            computing *= 1 + WIDENING / min(rows, TILE_ROWS)
        if form == "operands":
            rounding = ROUNDED if rounds_bf16(self.machine) else ROUNDING
            computing += rounding * prod(max(extent_value(dim), 1) for dim in node.inputs[1 - weights].shape) / peaks.f32
        reading = held * 4 / self.bandwidth(resident) if form == "float32" else held * 2 / self.bandwidth(resident // 2)
        return max(computing, reading) + (1 - HIDDEN) * min(computing, reading)

    def _operand_rate(self, node: Node, weights: int) -> float:
        """GFLOP/s with both factors in bfloat16: by tile instructions as far as terms that lie side by side fill their steps."""
        peaks = estimated_peaks(self.machine)
        tiles = [found for found in matrix_instructions(self.machine) if found.left is dtypes.bfloat16]
        if not tiles:
            return peaks.bf16
        # of a contraction, or of the channels of a block; of a plain image those of a window's row
        terms = node.inputs[1 if _along_rows(node) else 1 - weights].shape[-1]
        steps = tile_steps(int(terms.value), tiles[0]) if terms.is_const else None
        return peaks.f32 * PAIRS_BESIDE_TILES if steps is None else peaks.bf16 * TILES_REACH * steps / STEPS

    def bandwidth(self, resident: int) -> float:
        """GB/s at which weights come, of which so many bytes are read between two uses of each."""
        peaks, machine = estimated_peaks(self.machine), self.machine
        if resident <= KEPT * machine.l2.size:
            return peaks.l2
        return peaks.l3 if machine.l3 is not None and resident <= KEPT * machine.l3.size else peaks.memory


def direct_speed(machine: Machine) -> float:
    """How many times faster than in float32 direct products are with bfloat16 factors."""
    peaks = estimated_peaks(machine)
    return peaks.bf16 / peaks.f32 if multiplies_bf16(machine) else 1.0


def takes_pairs(node: Node, weights: int) -> bool:
    """Whether neighbours in the memory of the other operand go into one sum, and neighbours of the result have weights of their own: what
    instructions that take pairs ask for."""
    op = node.op
    if isinstance(op, Contract):
        letters = parse_spec(op.spec)
        own, other = (letters.left, letters.right)[weights], (letters.left, letters.right)[1 - weights]
        ends = other[-1:] in letters.reduced and other[-1:] in own
        return ends and bool(letters.result) and letters.result[-1] in own and letters.result[-1] not in other
    return isinstance(op, BlockedConvolution) and (node.inputs[0].type.rank == node.inputs[1].type.rank + 1 or _along_rows(node))


def _along_rows(node: Node) -> bool:
    """Whether a convolution reads neighbours in a row of a plain image for one sum, in whole pairs."""
    op = node.op
    if not isinstance(op, BlockedConvolution) or op.depthwise or node.inputs[0].type.rank != node.inputs[1].type.rank:
        return False
    width = node.inputs[1].shape[-1]
    return op.dilations[-1] == 1 and width.is_const and width.value % 2 == 0


def multiply_adds(node: Node) -> float:
    """Those of a contraction or a dense convolution; sizes known only while running count as typical ones."""
    if isinstance(node.op, Contract):
        letters = parse_spec(node.op.spec)
        dims = dict(zip(letters.left + letters.right, (*node.inputs[0].shape, *node.inputs[1].shape)))
        return float(prod(max(extent_value(dim), 1) for dim in dims.values()))
    terms = node.inputs[1].shape[1:]
    return float(prod(max(extent_value(dim), 1) for dim in (*node.types[0].shape, *terms)))
