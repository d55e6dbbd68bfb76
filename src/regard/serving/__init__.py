"""Serve models and search indexes over HTTP."""
