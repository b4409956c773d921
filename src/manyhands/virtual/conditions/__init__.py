"""What a virtual run is given: compute times, faults, and which process is on which host."""
