"""What an operator's kernel definition says about fusing it: derived from the blocks that it defines, not declared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.graph.node import Node, Operator, define, has_definition
from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import POLYNOMIALS, Op
from tilewright.ir.traverse import walk
from tilewright.ir.types import TensorType
from tilewright.kernel.builder import KernelBuilder
from tilewright.kernel.nodes import Block, Store, blocks, loads


@dataclass(frozen=True, slots=True)
class OperandUse:
    """How a definition reads one operand. `identity`: every load of it is at the output's own point (broadcast dims of extent 1 aside).
    `reads`: number of load expressions."""

    identity: bool
    reads: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """`injective`: one block without reduction that stores one value for each output point. `movement`: injective and the value is just a
    load. `opaque`: some block is imperative. `cheap`: recomputing a point costs little. `uses`: for each operand."""

    injective: bool
    movement: bool
    opaque: bool
    cheap: bool
    blocks: int
    uses: tuple[OperandUse, ...]


def pattern_of(node: Node) -> Pattern:
    return _pattern(node.op, tuple(value.type for value in node.inputs))


@lru_cache(maxsize=65536)
def _pattern(op: Operator, types: tuple[TensorType, ...]) -> Pattern:
    if not has_definition(op):
        return Pattern(False, False, True, False, 0, tuple(OperandUse(False, 1) for _ in types))
    k = KernelBuilder("pattern")
    inputs = tuple(k.input(f"x{i}", type_.dtype, type_.shape) for i, type_ in enumerate(types))
    outputs = define(op, k, inputs)
    found = [block for nest in k.nests for block in blocks(nest)]
    opaque = any(not isinstance(block.body, Store) for block in found)
    injective = not opaque and len(found) == 1 and len(outputs) == 1 and found[0].init is None
    uses = tuple(_use(tensor.buffer, found, injective) for tensor in inputs)
    cheap = movement = False
    if injective:
        body = found[0].body
        assert isinstance(body, Store)
        movement = body.value.op is Op.LOAD or body.value.op is Op.CONST
        nodes = list(walk(body.value))
        cheap = len(nodes) <= 24 and not any(e.op is Op.CALL and e.attr in POLYNOMIALS for e in nodes)
    return Pattern(injective, movement, opaque, cheap, len(found), uses)


def _use(buffer: object, found: list[Block], injective: bool) -> OperandUse:
    count, identity = 0, injective
    for block in found:
        for value in _values(block):
            for load in loads(value):
                if load.attr is not buffer:
                    continue
                count += 1
                identity = identity and _is_identity(load, block)
    return OperandUse(identity and count > 0, count)


def _values(block: Block) -> list[Expr]:
    from tilewright.kernel.nodes import own_exprs, walk_stmts

    return [e for stmt in walk_stmts(block) for e in own_exprs(stmt)]


def _is_identity(load: Expr, block: Block) -> bool:
    """The load's indices are the block's iters in order, right aligned; dims of extent 1 may be indexed with 0."""
    variables = [it.var for it in block.iters]
    offset = len(variables) - len(load.args)
    if offset < 0:
        return False
    for position, index in enumerate(load.args):
        wanted = variables[offset + position]
        unit = load.attr.shape[position].op is Op.CONST and load.attr.shape[position].value == 1
        if index is not wanted and not (unit and index.op is Op.CONST):
            return False
    return True
