"""The agent of a host: the foreground process that starts a run and ends it."""
