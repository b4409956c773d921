"""The agent: the foreground process of each host, which starts a run's processes and ends them."""
