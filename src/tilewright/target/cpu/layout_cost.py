"""What convolutions cost on a CPU in plain and in channel-blocked layouts, in nanoseconds, by the description of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.graph.node import Node, Value
from tilewright.graph.ops import Convolution
from tilewright.ir import dtypes
from tilewright.ir.typical import typical_dim
from tilewright.machine.description import Machine, estimated_peaks
from tilewright.target.cpu.bf16_cost import TILES_REACH
from tilewright.target.cpu.dots import TILE_BYTES, matrix_instructions
from tilewright.target.cpu.rules.matrix import STEPS, tile_steps
from tilewright.transform.block_channels import FEW

# Multiply-adds that storing one vector of results across its lanes costs, where channels are the lanes of a plain result
ACROSS = 12.0
ALONG_ROWS = 1.35  # times the arithmetic where rows of a plain image are the lanes: channels lie far apart
BYTES = 4.0  # the same for products of bytes, whose instructions want neighbouring channels
WINOGRAD = 0.5  # of the arithmetic that is left on average where Winograd's algorithm applies: blocked layouts alone
WINOGRAD_CHANNELS = 32  # from which on it does


def block_sizes(machine: Machine, narrow: bool) -> tuple[int, ...]:
    """Channels that a block may have: those of a vector of sums; where products are of bytes, or of bfloat16 (`narrow`), also as many as
    tile instructions take at once."""
    lanes = machine.lanes(32)
    most = TILE_BYTES // (2 if narrow else 1)
    return tuple(n for n in (lanes, 2 * lanes, 4 * lanes) if n == lanes or (n <= most and matrix_instructions(machine)))


@dataclass(frozen=True, slots=True)
class CpuLayoutCost:
    """`transform.choose_layouts.LayoutCost` of one core. speed: how many times faster dense blocked convolutions of floats are than in
    float32. lanes: channels of a block; 0 for those of a vector."""

    machine: Machine
    speed: float = 1.0
    lanes: int = 0

    def convolution(self, node: Node, blocked: bool) -> float:
        op = node.op
        assert isinstance(op, Convolution)
        x, w = (value.type for value in node.inputs)
        out = [max(typical_dim(dim), 1) for dim in node.types[0].shape]
        lanes = self.lanes or self.machine.lanes(32)
        outputs, depth, *window = (max(typical_dim(dim), 1) for dim in w.shape)
        peak = estimated_peaks(self.machine).f32
        arithmetic = 2.0 * prod(out) * depth * prod(window) / peak
        moved = (prod(out) + prod(max(typical_dim(dim), 1) for dim in x.shape)) * 4 / estimated_peaks(self.machine).l3
        if op.groups > 1:  # depthwise: as fast as memory in both, where rows fill vectors
            return max(moved, arithmetic * (1.0 if blocked else -(-out[-1] // lanes) * lanes / out[-1]))
        if blocked:
            fast = window == [3, 3] and set(op.strides) == {1} == set(op.dilations)
            fast = fast and min(depth, outputs) >= WINOGRAD_CHANNELS and op.dtype is dtypes.float32
            filled = -(-outputs // lanes) * lanes / outputs
            tiles = self._tile_speed(node)
            return arithmetic * filled * (1 / tiles if tiles else min(WINOGRAD if fast else 1.0, 1 / self.speed))
        if w.dtype is not dtypes.float32:
            return arithmetic * BYTES
        terms = depth * prod(window)
        along_channels = 1 + ACROSS / terms
        if any(stride > 1 for stride in op.strides):
            return arithmetic * along_channels
        row = prod(out[2:]) if prod(window) == 1 else out[-1]
        return arithmetic * min(along_channels, ALONG_ROWS * -(-row // lanes) * lanes / row)

    def window_channels(self, node: Node) -> int:
        """The number with which windows take the fewest tile instructions; 0 where there are none for the factors, or where the zeros cost
        more than they gain."""
        w = node.inputs[1].type
        floats = w.dtype.is_float
        if not w.is_static or (floats and self.speed <= 1):
            return 0
        dtype = dtypes.bfloat16 if floats else w.dtype
        found = next((tile for tile in matrix_instructions(self.machine) if tile.right is dtype), None)
        if found is None:
            return 0
        channels, width = int(w.shape[1].value), int(w.shape[-1].value)
        steps = {n: tile_steps(width * n, found) for n in range(channels, FEW + 1)}
        products = {n: width * n // (found.factors * count) for n, count in steps.items() if count is not None}
        best = min(products, key=products.__getitem__, default=0)
        if best and floats:
            peaks = estimated_peaks(self.machine)
            used = width * channels / (products[best] * found.factors * STEPS)
            return best if peaks.bf16 * TILES_REACH * used > peaks.f32 else 0
        return best

    def _tile_speed(self, node: Node) -> float:
        """How many times faster than products in float32 those by tile instructions are, of whose steps the channels of a block fill a
        part; 0 where there is no such instruction for them."""
        depth = max(typical_dim(node.inputs[1].shape[1]), 1)
        lanes = self.lanes or self.machine.lanes(32)
        dtype = node.inputs[1].type.dtype
        dtype = dtypes.bfloat16 if dtype is dtypes.float32 and self.speed > 1 else dtype
        if depth <= FEW or not any(found.right.bits == dtype.bits for found in matrix_instructions(self.machine)):
            return 0.0
        peaks = estimated_peaks(self.machine)
        used = min(1.0, lanes * dtype.bytes / TILE_BYTES) * depth / (-(-depth // lanes) * lanes)
        return max((peaks.int8 if dtype.is_integer else peaks.bf16) / peaks.f32 * used, 1.0)

    def conversion(self, value: Value) -> float:
        bytes_ = prod(max(typical_dim(dim), 1) for dim in value.shape) * max(value.type.dtype.bits, 8) / 8
        return 2.0 * bytes_ / estimated_peaks(self.machine).l3
