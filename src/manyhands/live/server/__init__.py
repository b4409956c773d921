"""The process of a parameter server: a shard, its protocol and its journal."""
