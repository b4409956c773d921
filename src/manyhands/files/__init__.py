"""Files that a run writes: tensors, folders, and disks that are full for a while."""
