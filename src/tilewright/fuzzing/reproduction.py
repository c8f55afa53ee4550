"""A failing case as a script of one page, which fits a bug report or becomes a test."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.accuracy.bisect import Culprit
from tilewright.accuracy.bundle import write_bundle
from tilewright.fuzzing.cases import Array, Case, Finding, module_of
from tilewright.graph.text import constants_of, format_module
from tilewright.ir import dtypes

INLINE = 256  # elements of all arrays that are written into the script; more lie in case.zip beside it
REPLAY = "tilewright fuzz --replay case.zip"
SCRIPT = '''"""{about}"""

from pathlib import Path

import numpy as np

from tilewright.fuzzing.cases import Case, How, read_case, run_case
from tilewright.graph.text_parser import parse_module
from tilewright.ir import dtypes

GRAPH = """
{graph}"""


def array(dtype: str, shape: tuple[int, ...], values: list[float]) -> np.ndarray:
    return np.array(values).astype(dtypes.BY_NAME[dtype].numpy).reshape(shape)


{case}
finding = run_case(case)
print(f"{{finding.kind}}: {{finding.text}}" if finding else "nothing is wrong")
raise SystemExit(finding is not None)
'''


def write_reproduction(folder: Path, case: Case, finding: Finding, culprit: str) -> None:
    """Write `reproduce.py`, and what bisecting has not written already: the graph, the inputs, the report."""
    text = format_module(module_of(case.function))
    if not culprit:
        names = module_of(case.function).input_names
        found = Culprit(finding.kind, "fuzz", finding.text, (("graph.txt", text),))
        write_bundle(folder, found, dict(zip(names, case.inputs[0], strict=True)), "case.zip", REPLAY)
    about = f"{finding.kind}: {finding.text}{culprit and f' ({culprit})'}".replace("\\", "/").replace('"""', "'''")
    (folder / "reproduce.py").write_text(SCRIPT.format(about=about, graph=text, case=case_text(case)), encoding="utf-8")


def case_text(case: Case) -> str:
    """The statement that makes the case."""
    arrays = [array for inputs in case.inputs for array in inputs]
    finite = all(np.isfinite(array.astype(np.float64)).all() for array in arrays)
    if constants_of([case.function]) or not finite or sum(array.size for array in arrays) > INLINE:
        return 'case = read_case(Path(__file__).with_name("case.zip"))'
    turns = "".join(f"    ({''.join(f'{array_text(array)}, ' for array in inputs)}),\n" for inputs in case.inputs)
    given = {entry.name: getattr(case.how, entry.name) for entry in fields(case.how)}
    plain = {entry.name: entry.default for entry in fields(case.how)}
    chosen = f"How({', '.join(f'{name}={value!r}' for name, value in given.items() if value != plain[name])})"
    return f"INPUTS = (\n{turns})\ncase = Case(parse_module(GRAPH).main, INPUTS, {chosen}, {case.seed})"


def array_text(array: Array) -> str:
    values: list[Any] = array.astype(np.float64).reshape(-1).tolist() if array.dtype.kind not in "biu" else array.reshape(-1).tolist()
    return f"array({dtypes.from_numpy(array.dtype).name!r}, {array.shape!r}, {values!r})"
