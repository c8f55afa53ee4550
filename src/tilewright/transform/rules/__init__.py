"""Rules of the graph simplifier, one file for each family of operators."""
