"""Models of pairwise interactions: linear, polynomial, matrix factorisation, factorisation machine.

All are scikit-learn estimators: `fit`, `predict`, `score`, sparse input, `clone`, pipelines, grid search.
They need scikit-learn and scipy: pip install "regard[interactions]".
"""

from __future__ import annotations

from importlib.util import find_spec

from regard.errors import OptionError

if find_spec("sklearn") is None:
    raise OptionError('this needs scikit-learn; pip install "regard[interactions]"')

from regard.interactions.factorization import (
    FactorizationMachine,
    FactorizationMachineClassifier,
    MatrixFactorization,
    MatrixFactorizationClassifier,
)
from regard.interactions.formulas import LowRank
from regard.interactions.linear_models import Linear, LinearClassifier, Polynomial2, Polynomial2Classifier
from regard.interactions.recommender import Recommender

__all__ = [
    "FactorizationMachine",
    "FactorizationMachineClassifier",
    "Linear",
    "LinearClassifier",
    "LowRank",
    "MatrixFactorization",
    "MatrixFactorizationClassifier",
    "Polynomial2",
    "Polynomial2Classifier",
    "Recommender",
]
