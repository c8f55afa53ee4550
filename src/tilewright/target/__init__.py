"""Targets: one folder per kind, each with schedule rules, intrinsics and a code generator."""
