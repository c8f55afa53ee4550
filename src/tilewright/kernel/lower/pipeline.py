"""Lowering: every pass by name, in order."""

from __future__ import annotations

from tilewright.kernel.lower.compact_buffers import compact_buffers
from tilewright.kernel.lower.decide_borders import decide_borders
from tilewright.kernel.lower.dissolve_blocks import dissolve_blocks
from tilewright.kernel.lower.drop_unread import drop_idle_prefetches, drop_unread
from tilewright.kernel.lower.partition_loops import partition_loops
from tilewright.kernel.lower.row_tails import split_row_tails
from tilewright.kernel.lower.simplify_statements import simplify_statements
from tilewright.kernel.lower.skip_identity import skip_identity
from tilewright.kernel.lower.specialise_sizes import specialise_sizes, tiled_sizes
from tilewright.kernel.nodes import Kernel


def lower(kernel: Kernel) -> Kernel:
    """The scheduled kernel as plain statements, which code generators take: no blocks, every buffer with its place, tails split off.

    Unrolled, vectorized and parallel loops stay, marked as such; the code generator carries them out.
    """
    # First: bindings become indices and predicates conditions, which is what the other passes look at.
    rows = tiled_sizes(kernel)
    kernel = dissolve_blocks(kernel)
    # Before buffers shrink to what is read of them: iterations of a parallel loop would store nothing anybody reads to one place.
    kernel = drop_unread(kernel)
    # Before simplification, since it subtracts the start of a region from indices, where most terms cancel.
    kernel = compact_buffers(kernel)
    # After buffers have their place, which is found from statements that run always; before conditions move out of loops.
    kernel = skip_identity(kernel)
    # Before partitioning, which needs conditions in their short form and outside the loops that they do not depend on.
    kernel = simplify_statements(kernel)
    # Before the other loops are split: conditions on rows are on unrolled loops, and are gone from full tiles.
    kernel = split_row_tails(kernel)
    kernel = partition_loops(kernel)
    # After partitioning, which splits loops by conditions as they stand; those that it leaves are at the ends of rows.
    kernel = decide_borders(kernel)
    # Again: a partition knows more about its loop, and may have one iteration. Where all that is read is padding, nothing is left to fetch.
    kernel = drop_idle_prefetches(simplify_statements(kernel))
    # Last: it doubles the statements.
    return specialise_sizes(kernel, rows)
