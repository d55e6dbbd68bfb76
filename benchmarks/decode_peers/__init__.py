"""Other systems that translate with the weights of a regard model; `python -m benchmarks.decode_speed --help`.

Where things are: texts.py the sentences, handout.py the weights in every system's format and the token ids, systems.py and joey.py
the peers as their users call them, ours.py regard, worker.py the process in which one system translates, measure.py the turns they
take, report.py the table. Nothing that the workers import needs regard, but for ours.py.
"""
