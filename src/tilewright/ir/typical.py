"""What sizes of unknown value count as, where something is chosen for all of them.

A size that a constant divides in the shape of a tensor is the side of an image, which strides have divided: a network that halves its
images five times is not meant for those of 64 pixels, of which 2 would be left.
"""

from __future__ import annotations

from tilewright.ir.expr import Expr
from tilewright.ir.scalar_ops import Op
from tilewright.ir.traverse import evaluate_int, free_vars, walk

TYPICAL = 64  # a size without upper bound
IMAGE = 224  # a side of an image without upper bound
IMAGES = (128, 160, 192, 224, 256, 320, 384, 512)  # sides of images to choose for at once


def sides(dim: Expr) -> frozenset[Expr]:
    """The sizes in a dim of a tensor that are sides of images."""
    divided = [e for e in walk(dim) if e.op is Op.FLOORDIV and e.args[1].is_const and e.args[1].value > 1]
    return frozenset(free_vars(*(e.args[0] for e in divided)))


def typical_dim(dim: Expr, typical: int = TYPICAL, image: int = IMAGE, images: frozenset[Expr] = frozenset()) -> int:
    """A dim of a tensor, where its sizes are symbolic: sides of images, and `images`, which other dims divide, at `image`, as far as their
    range allows, others at their upper bound, else at `typical`."""
    if dim.is_const:
        return int(dim.value)
    own = sides(dim) | images
    env = {v: _within(v, image) if v in own else (v.attr.hi or max(typical, v.attr.lo or 0)) for v in free_vars(dim)}
    return evaluate_int(dim, env)


def several_dims(dim: Expr) -> tuple[int, ...]:
    """Values of a dim of sides of images, for IMAGES, at least 1; none of any other dim."""
    if not sides(dim):
        return ()
    return tuple(max(typical_dim(dim, image=image), 1) for image in IMAGES)


def _within(size: Expr, value: int) -> int:
    """The value that the size can have which is closest."""
    info = size.attr
    return max(min(value, value if info.hi is None else int(info.hi)), info.lo or 0)
