"""The cost of watching attention by `regard.watch` and its peers: `python -m benchmarks.watch --help`.

model.py has the Llama-shaped model and the float64 truth, systems.py what is compared, measure.py time and
memory, long.py one long sequence, report.py the table.
"""
