"""All pixels of an image as one axis of rows, where a row of the image has a length that is known only while running.

Tiles of a pointwise convolution run along a row of the image, and each row ends with a tile of what is left: of 10 pixels 2, after 8. Of
all 100 pixels 4 are left. Where the length is known, the height of a tile is chosen for it.
"""

from __future__ import annotations

from itertools import pairwise

from tilewright.kernel.nodes import Block
from tilewright.kernel.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.target.cpu.rules.structure import as_product, block_of, uses


def flat_rows(s: Schedule, name: str) -> Schedule:
    """The kernel with two neighbouring axes of product `name` as one, where one operand moves with both and the other with neither, and the
    inner one has an unknown length; as it was where nothing of that kind is there."""
    for position in _candidates(block_of(s, name)):
        try:
            return s.flatten(name, position)[0]
        except ScheduleError:
            continue
    return s


def _candidates(block: Block) -> list[int]:
    """Numbers of the outer ones of two such iters."""
    product = as_product(block)
    if product is None:
        return []
    found = []
    for position, pair in enumerate(pairwise(block.iters)):
        outer, inner = pair
        if (
            outer.kind != "spatial"
            or inner.kind != "spatial"
            or inner.extent.is_const
            or (outer.extent.is_const and outer.extent.value == 1)
        ):
            continue
        of = [{it for it in pair if uses(operand, it.var)} for operand in (product.left, product.right)]
        if of in ([set(pair), set()], [set(), set(pair)]):
            found.append(position)
    return found
