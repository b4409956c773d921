"""Processes of one host: starting them, watching them and ending them."""
