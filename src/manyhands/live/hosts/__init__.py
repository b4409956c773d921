"""The hosts of a run: the list of hosts, their compatibility, and the invitation to join."""
