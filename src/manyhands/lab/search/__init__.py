"""`search`: parallel trials of a job with free parameters."""

from manyhands.lab.search.parallel_search import SearchDesign, carry_out, search
from manyhands.lab.search.searched import Searched
from manyhands.lab.search.trial import Trial, TrialResult

__all__ = ["SearchDesign", "Searched", "Trial", "TrialResult", "carry_out", "search"]
