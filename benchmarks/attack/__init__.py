"""Attacks: kills, many requests, misbehaving clients, damaged folders, wrong calls. See docs/attacks.md."""
