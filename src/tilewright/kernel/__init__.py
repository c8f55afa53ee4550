"""Loop programs: nodes, builder, script form, interpreter, verifier, schedules and lowering.

The package can be called: `@tw.kernel` is `kernel.script_parser.kernel`, the decorator that reads a Python function as a kernel.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    # `tilewright.kernel` becomes this package as soon as anything imports it, whatever else had that name before.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tilewright.kernel.script_parser import kernel

        return kernel(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
