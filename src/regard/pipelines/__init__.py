"""Pipelines: text, files or streams through a model, in order and resumable."""
