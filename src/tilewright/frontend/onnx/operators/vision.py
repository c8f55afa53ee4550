"""Importers of ONNX operators: vision."""

from __future__ import annotations

from tilewright.frontend.onnx.context import Table

IMPORTERS: Table = {}
