"""The attention operator, and nothing that learns a task."""
