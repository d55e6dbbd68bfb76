"""The attention operator: energies, masks, biases, normalisers, kernels, and recorded calls."""
