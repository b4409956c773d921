"""The verbs of the library: each is a function in a module of its name, and a subcommand."""
