"""From a graph of fused groups to an ordered list of steps with every buffer placed."""
