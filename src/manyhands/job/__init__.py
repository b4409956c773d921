"""What to train: a `Job`, which says nothing about how or where."""

from manyhands.job.fields import Durability, Loss
from manyhands.job.job import SETTINGS, Job

__all__ = ["SETTINGS", "Durability", "Job", "Loss"]
