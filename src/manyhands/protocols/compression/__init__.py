"""Codecs under protocols: what is sent between workers and servers, encoded and decoded."""
