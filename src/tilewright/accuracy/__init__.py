"""Whether a compiled model computes what it should, and if not, where it goes wrong."""
