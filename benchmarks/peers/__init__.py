"""Shared by the benchmarks: command line, machine facts, tables, and peers in worker processes.

command.py has the options of every benchmark, machine.py what each table states about the machine, tables.py
the Markdown. environments.py makes a virtual environment for each peer, process.py starts workers and sends
them commands, worker_loop.py answers these in the worker. memory.py and errors.py serve both sides.
"""
