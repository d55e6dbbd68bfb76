"""Recipes: their schema, loading, overrides and checks."""
