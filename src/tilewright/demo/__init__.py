"""A small trained network with real input, so that a first run of the compiler shows something that can be seen to be right."""

from tilewright.demo.digits import Samples, accuracy, model_bytes, network_input, render, samples

__all__ = ["Samples", "accuracy", "model_bytes", "network_input", "render", "samples"]
