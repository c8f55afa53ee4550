"""The graph level: what to compute, as an immutable DAG of operator nodes over tensors with symbolic shapes."""
