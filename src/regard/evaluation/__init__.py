"""What can be said of a layer or a model by measuring it."""
