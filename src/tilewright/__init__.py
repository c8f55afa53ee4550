"""Tilewright: a deep-learning compiler that one can install and read."""

__version__ = "0.1.0"
