"""Where a job runs: sites and hosts, the links between them, and the places of processes."""

from manyhands.cluster.cluster import Cluster
from manyhands.cluster.host import Host, Link, Site

__all__ = ["Cluster", "Host", "Link", "Site"]
