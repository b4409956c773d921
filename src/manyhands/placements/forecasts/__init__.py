"""What placements send and hold, computed without running them."""
