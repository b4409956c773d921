"""Starting, watching and ending processes on one host."""
