"""Gossip protocols: workers exchange parameters with neighbours only, without central servers."""
