"""`python -m regard` is the command `regard`."""

from regard.cli.main import run

run()
