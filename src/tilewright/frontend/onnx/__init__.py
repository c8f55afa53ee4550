"""The ONNX front end: `load_model` reads a file, `import_model` makes a graph module of it."""

from tilewright.frontend.onnx.importer import DimRange, Imported, import_model
from tilewright.frontend.onnx.loader import LoadedModel, load_model

__all__ = ["DimRange", "Imported", "LoadedModel", "import_model", "load_model"]
