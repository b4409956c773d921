"""Sphinx extensions of the site: the references, and links to files outside `docs/`."""
