"""The explorer: a page that shows what a model attends to, and what changes when attention is changed."""
