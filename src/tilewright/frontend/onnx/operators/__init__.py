"""Importers of ONNX operators, one file per operator family; each has a table `IMPORTERS`."""
