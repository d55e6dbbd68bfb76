"""Compare few sentences after an export or import: random weights generate up to the length limit."""

import pytest

from regard.interchange.export import compare


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    monkeypatch.setattr(compare, "SENTENCES", 4)
