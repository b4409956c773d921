"""Networks on one machine: namespaces with shaped links, and relays that add latency."""
