"""How a table runs others beside us: a virtual environment for each, a process that is asked, a process that answers."""
