"""Memory that the processes of one host share, and collectives in it."""
