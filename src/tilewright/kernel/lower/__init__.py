"""From scheduled kernels to plain statements."""

from tilewright.kernel.lower.pipeline import lower

__all__ = ["lower"]
