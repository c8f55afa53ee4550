"""Tilewright: a deep-learning compiler that one can install and read.

    import tilewright as tw

    exe = tw.compile("model.onnx")      # an Executable: exe(x), exe.run({"input": x}), exe.save("model.tw")
    exe = tw.load("model.tw")
    report = tw.check("model.onnx")     # everything that the model needs and Tilewright lacks; report.ok
    tw.compare("model.onnx")            # per kernel: what it computes against what it should
    tw.fuzz(seconds=60)                 # random models: compiled code against the reference

Names are imported when they are first used, so that `import tilewright` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import compile  # noqa: A004 (the name that users look for)
    from tilewright.comparison import Comparison, compare
    from tilewright.examine import Report, check
    from tilewright.fuzzing.run import FuzzReport, fuzz
    from tilewright.runtime.executable import Executable
    from tilewright.runtime.opening import load
    from tilewright.support.errors import TilewrightError
    from tilewright.support.settings import override

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "tilewright.comparison",
    "Executable": "tilewright.runtime.executable",
    "FuzzReport": "tilewright.fuzzing.run",
    "Report": "tilewright.examine",
    "TilewrightError": "tilewright.support.errors",
    "check": "tilewright.examine",
    "compare": "tilewright.comparison",
    "compile": "tilewright.api",
    "fuzz": "tilewright.fuzzing.run",
    "load": "tilewright.runtime.opening",
    "override": "tilewright.support.settings",
}

__all__ = [
    "Comparison",
    "Executable",
    "FuzzReport",
    "Report",
    "TilewrightError",
    "__version__",
    "check",
    "compare",
    "compile",
    "fuzz",
    "load",
    "override",
]


def __getattr__(name: str) -> Any:
    if name == "kernel":  # the decorator and the package of loop programs share the name: the package can be called
        return import_module("tilewright.kernel")
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "kernel"})
