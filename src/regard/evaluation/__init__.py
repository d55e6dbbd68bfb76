"""Metrics of models (BLEU, perplexity, F1, retrieval, calibration) and costs and properties of layers."""
