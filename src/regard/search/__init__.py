"""Document search (embeddings, BM25, hybrid), near-duplicate detection and label spreading."""
