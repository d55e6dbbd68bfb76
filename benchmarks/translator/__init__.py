"""The data of the bundled translator: `python -m benchmarks.translator.prepare --help`."""
