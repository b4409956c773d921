"""Starting runs where other systems hand out machines: Slurm, Kubernetes, Ray."""
