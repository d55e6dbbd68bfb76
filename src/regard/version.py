"""The version, stated only here. pyproject.toml reads it; a test compares CITATION.cff and the changelog."""

__version__ = "0.5.0"
