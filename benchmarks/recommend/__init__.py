"""Ratings predicted by us and by scikit-surprise: the same folds, one run, a process each."""
