"""Export models to and import them from other libraries."""
