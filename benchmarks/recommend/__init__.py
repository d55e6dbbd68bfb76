"""Rating prediction by regard and scikit-surprise: the same folds, one run, a process each."""
