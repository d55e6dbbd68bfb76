"""Other systems that translate with a regard model's weights: `python -m benchmarks.decode_speed --help`.

texts.py has the sentences, handout.py the weights in every system's format and the token ids, systems.py and
joey.py the peers as their users call them, ours.py regard, worker.py the process in which one system
translates, measure.py the turns they take, report.py the table. Only ours.py needs regard in a
worker.
"""
