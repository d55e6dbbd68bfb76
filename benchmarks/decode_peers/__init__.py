"""Other systems that translate with a regard model's weights: `python -m benchmarks.decode_speed --help`.

texts.py has the sentences, worker_inputs.py the weights in each system's format, systems.py and joey.py the
peers as their users call them, ours.py regard, worker.py the process in which one system translates,
measure.py the rounds in which they take turns, report.py the tables. Only ours.py needs regard in a worker.
"""
