"""Peers that classify SST-2, each in its own process."""
