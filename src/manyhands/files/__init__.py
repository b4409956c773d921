"""Files that a run writes: tensors and folders, with handling of full disks."""
