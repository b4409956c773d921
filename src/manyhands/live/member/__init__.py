"""What workers and servers have in common: heartbeats, progress, traces, errors."""
