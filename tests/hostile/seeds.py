"""Sound models and artifacts, which hostile cases damage."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import onnx

import tilewright as tw
from tests.end_to_end.small_models import text_model, vision_model
from tests.model_families import FAMILIES
from tests.onnx_backend.cases import load_cases

LARGEST = 64 << 10  # bytes of a model: what is wrong with one shows in a small one as well


def seed_models(every: int = 1) -> list[bytes]:
    """The node cases of the ONNX backend suite (each Nth of them), one model for each family of kernels, and two whole ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = [case.model for case in load_cases(("node",)).values() if case.model is not None][::every]
    families = [made().model() for made in FAMILIES.values()]
    contents = [model.SerializeToString() for model in (*nodes, *families, vision_model(), text_model())]
    return [content for content in contents if len(content) <= LARGEST]


def seed_artifacts() -> list[bytes]:
    """Artifacts of both small models, and of one that is a program with strings."""
    strings = '<ir_version: 8, opset_import: ["" : 20]> m (string[n] x) => (string[n] y, float[2] z) {\
        y = StringConcat(x, x) z = Constant <value_floats = [1.0, 2.0]> () }'
    contents = []
    with tempfile.TemporaryDirectory() as folder:
        for model in (vision_model(), text_model(), onnx.parser.parse_model(strings)):
            path = Path(folder) / "model.tw"
            tw.compile(model, cache=False, progress="none").save(path)
            contents.append(path.read_bytes())
    return contents
