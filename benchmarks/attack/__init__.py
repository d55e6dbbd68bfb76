"""Attacks on a running regard: kills, many requests with rude clients, damaged folders, wrong calls. See docs/attacks.md."""
