"""What it costs to see attention: `regard.watch`, eager attention and attnread. `python -m benchmarks.watch --help` says more.

Where things are: model.py the Llama-shaped model and the float64 truth, systems.py who answers and how, measure.py how time and
memory are taken, long.py one long sequence, report.py the table.
"""
