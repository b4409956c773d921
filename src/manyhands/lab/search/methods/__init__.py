"""Methods of search, a file each; they are written like strategies: `population(size=8)`."""

from manyhands.lab.search.methods.evolution import Evolution
from manyhands.lab.search.methods.method import Proposing, SearchMethod, SearchPlan
from manyhands.lab.search.methods.optuna_methods import OptunaSearch
from manyhands.lab.search.methods.population import Population
from manyhands.lab.search.methods.random_search import RandomSearch
from manyhands.lab.search.methods.swarm import Swarm
from manyhands.notation import Catalog

__all__ = [
    "METHODS",
    "Evolution",
    "OptunaSearch",
    "Population",
    "Proposing",
    "RandomSearch",
    "SearchMethod",
    "SearchPlan",
    "Swarm",
]

METHODS: Catalog[SearchMethod] = Catalog(
    "search method", (RandomSearch, Population, Evolution, Swarm, OptunaSearch)
)
