"""What regard is measured by: each folder or file is one table, us and the peers in one run."""
