"""Interchange: export to and import from other libraries."""
