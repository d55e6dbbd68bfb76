"""Ways to compute one attention call. `reference` is the meaning; the others may only be faster."""
