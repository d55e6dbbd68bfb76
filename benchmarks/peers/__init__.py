"""Running peers: a virtual environment for each, a parent process that sends commands to workers."""
