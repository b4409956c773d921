"""A user's script: loading it in other processes, and where a job in it is found."""
