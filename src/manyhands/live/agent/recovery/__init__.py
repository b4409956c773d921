"""How a run goes on when a process of it is lost: restarts, replacements, checkpoints."""
