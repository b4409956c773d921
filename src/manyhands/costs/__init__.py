"""Cost formulas of parallel training: pure functions of sizes and counts."""

from manyhands.costs.collectives import Collective, sent_per_worker
from manyhands.costs.forecast import Forecast, LayerSize, TensorSize

__all__ = ["Collective", "Forecast", "LayerSize", "TensorSize", "sent_per_worker"]
