"""Other accounts of what a model computes, and what a reader must know to compare with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.comparison.subject import Subject
from tilewright.frontend.onnx.walking import walk_nodes
from tilewright.runtime.host.kinds import leaves
from tilewright.runtime.opening import load
from tilewright.runtime.specs import Array
from tilewright.support.errors import SettingsError

RANDOM = frozenset(["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"])
QUANTISED = (
    "quantised: a value near a tie may be rounded one step up or down, and layers behind it amplify the step; see `docs/numerics.md`"
)
RANDOMISED = "draws random numbers: other runtimes draw others"


def account(against: str, subject: Subject, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outputs by name, by another account than the reference. Raises SettingsError for one that is not known."""
    if against == "onnxruntime":
        return by_onnxruntime(subject, inputs)
    if not Path(against).is_file():
        hint = "`reference`, `onnxruntime`, or the path of an artifact"
        raise SettingsError(f"there is nothing called '{against}' to compare with", hint=hint)
    return load(against).run(inputs)


def by_onnxruntime(subject: Subject, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ONNX Runtime computes, without its optimisations. Raises SettingsError where it is not installed or refuses the model."""
    try:
        import onnxruntime
    except ImportError:
        raise SettingsError("onnxruntime is not installed", hint="pip install tilewright[bench]") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        model = subject.model
        source = str(model) if isinstance(model, (str, Path)) else subject.loaded.proto.SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:
        raise SettingsError("onnxruntime cannot run this model", why=str(error), hint="compare with the reference") from error


def notes(subject: Subject, against: str, doubtful: bool) -> tuple[str, ...]:
    """What a reader must know of the model. doubtful: some result is beyond its tolerance."""
    operators = {node.op_type for node in walk_nodes(subject.loaded.proto.graph.node)}
    operators |= {node.op_type for function in subject.loaded.proto.functions for node in walk_nodes(function.node)}
    found = []
    if (doubtful or against != "reference") and any("QuantizeL" in name or "Integer" in name or "QLinear" in name for name in operators):
        found.append(QUANTISED)
    if against == "onnxruntime" and operators & RANDOM:
        found.append(RANDOMISED)
    return tuple(found)


def all_leaves(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
    """The leaves of outputs by name, in the order of `names`; those that are not there are left out."""
    return {leaf: array for name in names if name in values for leaf, array in leaves(name, values[name])}
