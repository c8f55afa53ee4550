"""Operators on values that are no tensors of numbers: strings, sequences, optionals, maps. NumPy and plain Python; no arithmetic."""
