"""Gossip: protocols without servers, in which workers exchange with neighbours."""
