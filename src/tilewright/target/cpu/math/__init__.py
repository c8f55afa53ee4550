"""Elementary functions as expressions of primitive operations."""

from tilewright.target.cpu.math.expand import EXPANSIONS, expand_call, expand_math, expand_math_in

__all__ = ["EXPANSIONS", "expand_call", "expand_math", "expand_math_in"]
