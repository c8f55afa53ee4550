"""How the panel of a product is stored: in the order in which tiles read it, at compile time, or by a copy while running where it pays."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel.nodes import Block
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.kernel.schedule.space import Space
from tilewright.machine.description import Machine
from tilewright.target.cpu.rules.narrow_weights import by_panels, conversion_cost, on_tile
from tilewright.target.cpu.rules.packing import pack_operand
from tilewright.target.cpu.rules.register_tile import COPIED_LINE, FIRST_LINE, MASKED, PAGE, Tile, is_ragged, stays_near
from tilewright.target.cpu.rules.structure import block_of, extent_value, reductions, stride, uses

NEAR_ROW, FAR_ROW = 2.0, 20.0  # cycles by which a step is late when its row is not in the first cache, and when it is in another page


def pack_panel(
    s: Schedule, name: str, tile: Tile, constants: frozenset[str], machine: Machine, space: Space
) -> tuple[Schedule, str | None]:
    """Store a panel in the order in which the tiles read it: a constant at compile time; one that is computed by a copy, where that pays.
    The second result is a block that copies panels and is to be computed at each of them."""
    buffer = tile.panel.attr
    packed = buffer.name
    packing: str | None = None
    if packed not in constants:
        in_order = stride(tile.panel, tile.vector.var) == 1
        if buffer in s.kernel.inputs:
            options = ("no", "panel", "whole") if in_order else ("panel", "whole")
            why = "cycles for each panel: reading it where it lies by each row tile, or copying it first"
            how = space.choose(f"{name}.pack", options, lambda how: _packing_cost(block_of(s, name), tile, how, machine), why)
            if how == "no":
                return s, None
            s, (copy, *_) = s.cache_read(name, packed, "global")
            packed = s.nest.outputs(copy)[0].name
            packing = copy if how == "panel" else None
        elif in_order or buffer not in s.kernel.scratch:
            return s, None
    width = tile.lanes if tile.beyond is not None else tile.vectors * tile.lanes
    return pack_operand(s, name, tile.panel, packed, tile.vector, width), packing


def narrow_panel(
    s: Schedule, name: str, tile: Tile, converting: str, constants: frozenset[str], machine: Machine, space: Space
) -> tuple[Schedule, Tile, str | None]:
    """Weights that the block `converting` makes of small integers: on the tile, or a panel at a time by that block, which then is the last
    result."""
    rows = None if tile.row is None else tile.row.extent
    why = "vector instructions that convert a vector of weights, for each row"
    how = space.choose(f"{name}.weights", ("tile", "panel"), lambda how: conversion_cost(how, rows, tile.rows), why)
    width = tile.lanes if tile.beyond is not None else tile.vectors * tile.lanes
    if how == "tile":
        s, narrow = on_tile(s, name, converting, tile.vector, (tile.rows, tile.vectors, width), constants, machine, space)
        return s, replace(tile, panel=narrow.codes, narrow=narrow), None
    s = by_panels(s, name, converting, tile.vector, width, constants)
    return pack_operand(s, name, tile.panel, tile.panel.attr.name, tile.vector, width), tile, converting


def _packing_cost(block: Block, tile: Tile, how: str, machine: Machine) -> float:
    """Cycles that one panel costs beyond multiply-adds, by how it is read. In place, each step of the reduction goes on to another row of
    the operand: rows that are far apart come from further away than a panel in order would, and past a page each takes a translation."""
    depth, passes, panels = 1, 1, 1
    for it in block.iters:
        extent = max(extent_value(it.extent, 256), 1)
        if it.kind == "reduction":
            depth *= extent
        elif it is tile.row:
            passes *= -(-extent // tile.rows)
        elif not uses(tile.panel, it.var):
            passes *= extent
        elif it is tile.vector:
            panels *= -(-extent // (tile.lanes * tile.vectors))
        else:
            panels *= extent
    inner = reductions(block)[-1] if reductions(block) else None
    step = stride(tile.panel, inner.var) if inner is not None else 0
    apart = (step if step is not None else PAGE) * tile.panel.dtype.bytes
    lines = tile.vectors * tile.lanes * tile.panel.dtype.bytes / machine.l1d.line
    width = tile.vectors * tile.lanes
    masked = MASKED * is_ragged(tile.panel, tile.vector, width) * passes * depth * tile.rows * tile.vectors / machine.fma_units
    if how == "no" and stays_near(block, tile.panel, width, machine):
        return depth * lines * FIRST_LINE + masked
    if how == "no":
        far = depth * apart > machine.l1d.size
        return passes * depth * (FAR_ROW if far and apart >= PAGE else NEAR_ROW if far else 0.0) + masked
    copying = depth * lines * COPIED_LINE
    # panels that are too few for the cores are packed by all of them together
    return copying * (1.5 if how == "whole" else 1.0 if panels >= 2 * machine.cores else 2.0)
