"""Files on disk: atomic writes, locks, checksums, the cache directory, progress bars."""
