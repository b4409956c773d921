"""What servers store and continue from: checkpoints, and journals with their replay."""
