"""`python -m manyhands` is the command `manyhands`."""

from manyhands.cli import main

main()
