"""Decoding: one search loop for every model that writes, and what is made of it."""
