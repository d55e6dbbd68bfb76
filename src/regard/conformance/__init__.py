"""A conformance suite for attention functions: random calls, checked against the definition in float64.

>>> from regard.conformance import case, check, load
>>> drawn = case("strides", 3)
>>> check(drawn, load("regard.conformance.backends:sdpa")).verdict
'pass'

`python -m regard.conformance --backend package:function` runs all classes of inputs on any attention
function.
"""

from regard.conformance.actions import Refused, load
from regard.conformance.cases import CLASSES, Case, case
from regard.conformance.verdicts import Outcome, check

__all__ = ["CLASSES", "Case", "Outcome", "Refused", "case", "check", "load"]
