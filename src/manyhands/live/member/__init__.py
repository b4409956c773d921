"""Parts shared by workers and servers: heartbeats, progress, traces, error reports."""
