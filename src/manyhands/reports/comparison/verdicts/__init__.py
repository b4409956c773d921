"""What a verdict is made of: contests, times to a target, and the recommendation."""
