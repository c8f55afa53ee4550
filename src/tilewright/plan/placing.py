"""Laying out the arenas of a plan, and rewriting its steps from storages to places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr
from tilewright.ir.simplify import simplify
from tilewright.ir.types import TensorType, sizes_of
from tilewright.plan.memory import Interval, place
from tilewright.plan.steps import Allocate, Bind, Branch, Copy, Grow, Launch, Place, Plan, Region, Step
from tilewright.plan.steps import Loop as LoopStep
from tilewright.plan.storage import ZERO, Ledger, Marker, PlannedStep, Storage


def lay_out(ledger: Ledger, inputs: Sequence[TensorType], outputs: Sequence[TensorType], constants: Sequence[TensorType]) -> Plan:
    """Lay out the arenas and rewrite the steps from storages to places."""
    ledger.overwrite()
    groups: dict[int, list[Storage]] = {}
    regions: dict[int, tuple[Region, Expr]] = {}
    arenas = 1
    for storage in ledger.storages:
        if storage.forward is not None:
            continue
        if storage.kind != "arena":
            regions[storage.number] = (Region(storage.kind, storage.index), ZERO)
        elif storage.grows:
            regions[storage.number] = (Region("arena", arenas), ZERO)
            arenas += 1
        else:
            groups.setdefault(-1 if storage.bind is None else storage.bind.number, []).append(storage)
    allocations: dict[int, list[Step]] = {}
    total: Expr = ZERO
    for bind, members in sorted(groups.items()):
        offsets, bytes_ = place([Interval(s.bytes, s.first, s.last) for s in members])
        arena = Region("arena", 0)
        if bind < 0:
            total = bytes_
        else:
            arena = Region("arena", arenas)
            arenas += 1
            allocations.setdefault(bind, []).append(Allocate(arena, bytes_))
        for storage, offset in zip(members, offsets, strict=True):
            regions[storage.number] = (arena, offset)
    late_outputs = []
    for storage in ledger.storages:
        if storage.kind == "output" and storage.bind is not None:
            late_outputs.append(storage.index)
            allocations.setdefault(storage.bind.number, []).append(Allocate(Region("output", storage.index), storage.bytes))
    steps = _resolve(ledger.steps, ledger.storages, regions, allocations)
    input_sizes = sizes_of(inputs)
    sizes = tuple(dict.fromkeys((*input_sizes, *ledger.late_sizes)))
    return Plan(tuple(inputs), tuple(outputs), tuple(late_outputs), tuple(constants), steps, total, arenas, sizes, len(input_sizes))


def _resolve(
    steps: Sequence[PlannedStep],
    storages: Sequence[Storage],
    regions: Mapping[int, tuple[Region, Expr]],
    allocations: Mapping[int, Sequence[Step]],
) -> tuple[Step, ...]:
    def real(place_: Place) -> Place:
        storage, offset = storages[place_.region.index], place_.offset
        while storage.forward is not None:
            offset, storage = offset + storage.forward.offset, storage.forward.storage
        region, base = regions[storage.number]
        return Place(region, simplify(base + offset), place_.type)

    result: list[Step] = []
    for step in steps:
        match step:
            case Marker(bind):
                result.extend(allocations.get(bind.number, ()))
            case Launch():
                result.append(replace(step, args=tuple(real(p) for p in step.args)))
            case Copy(target, source):
                target, source = real(target), real(source)
                if (target.region, target.offset) != (source.region, source.offset):
                    result.append(Copy(target, source))
            case Bind():
                result.append(replace(step, source=real(step.source)))
            case Grow(arena, bytes_):
                result.append(Grow(regions[arena.index][0], bytes_))
            case Branch(condition, then, otherwise):
                sides = [_resolve(side, storages, regions, allocations) for side in (then, otherwise)]
                result.append(Branch(real(condition), sides[0], sides[1]))
            case LoopStep(counter, trip, condition, body):
                where = None if condition is None else real(condition)
                result.append(LoopStep(counter, trip, where, _resolve(body, storages, regions, allocations)))
            case _:
                result.append(step)
    return tuple(result)
