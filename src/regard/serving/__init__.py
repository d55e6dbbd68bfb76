"""Serving: HTTP, export and import, corpora beyond one machine."""
