"""Random cases: the problem, the cluster and the faults that a seed stands for."""
