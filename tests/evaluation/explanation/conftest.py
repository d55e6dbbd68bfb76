"""Limit the length of translations: tiny models with random weights rarely end a sentence."""

import pytest

from regard.evaluation.explanation import explained_models


@pytest.fixture(autouse=True)
def _short_translations(monkeypatch):
    monkeypatch.setattr(explained_models, "MAX_TARGET", 6)
