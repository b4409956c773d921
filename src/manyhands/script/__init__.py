"""The user's script: loading it in other processes, and locating the job in it."""
