"""Search: documents by their vectors, by their words, or by both; duplicates; labels that spread to neighbours."""
