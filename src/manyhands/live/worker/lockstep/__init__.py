"""Training in lockstep: batches of one worker, and groups whose members may be replaced."""
