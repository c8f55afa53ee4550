"""Before and after of a pass as one text, for golden comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.graph.node import Function
from tilewright.graph.text import format_function
from tilewright.graph.text_parser import parse_function


def before_and_after(cases: Mapping[str, str], apply: Callable[[Function], Function], constants: Mapping[str, Any] | None = None) -> str:
    """For each case, a function's text and what the pass makes of it, by operators."""
    parts = []
    for title, text in cases.items():
        function = parse_function(text, constants or {})
        after = apply(function)
        assert tuple(v.type for v in after.results) == tuple(v.type for v in function.results), title
        parts.append(f"# {title}\n{format_function(function)}\n# becomes\n{format_function(after)}")
    return "\n\n".join(parts)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights whose every value is a small multiple of 1/4."""
    return (np.random.default_rng(seed).integers(-8, 9, shape) / 4).astype(np.float32)


def text_of(body: str, params: str, results: str = "y") -> str:
    """The text of a function with these lines, parameters and results."""
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    return f"def main({params}):\n{lines}\n    return {results}\n"


def function(body: str, params: str, results: str = "y") -> Function:
    """The function of `text_of`."""
    return parse_function(text_of(body, params, results))
