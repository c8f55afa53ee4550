"""The scheduling language: primitives over immutable kernels, and traces of them."""

from tilewright.kernel.schedule.layout import PackedLayout
from tilewright.kernel.schedule.loop_tree import loop_tree
from tilewright.kernel.schedule.schedule import PRIMITIVES, Schedule, replay
from tilewright.kernel.schedule.trace import Instruction, Trace

__all__ = ["PRIMITIVES", "Instruction", "PackedLayout", "Schedule", "Trace", "loop_tree", "replay"]
