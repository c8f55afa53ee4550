"""Well-known models with seeded random weights, built without any framework: for trying the compiler, for its tests and benchmarks."""

from tilewright.zoo.catalog import CATALOG, Entry, Option, build, example_inputs, parse_options, save, write

__all__ = ["CATALOG", "Entry", "Option", "build", "example_inputs", "parse_options", "save", "write"]
