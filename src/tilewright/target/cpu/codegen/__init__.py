"""LLVM IR text from lowered kernels, for CPUs."""

from tilewright.target.cpu.codegen.kernel import generate, workspace_bytes

__all__ = ["generate", "workspace_bytes"]
