"""Optimizers and learning-rate schedules, registered by the name that a recipe gives in `kind`."""

from __future__ import annotations

from regard.optimization.optimizers import OPTIMIZERS, OptimizerOptions
from regard.optimization.schedules import SCHEDULES, ScheduleContext, ScheduleOptions

__all__ = ["OPTIMIZERS", "SCHEDULES", "OptimizerOptions", "ScheduleContext", "ScheduleOptions"]
