"""Training speed beside Joey NMT, HF Marian and x-transformers: `python -m benchmarks.train_speed --help`.

Needs regard installed (`pip install -e .`), and pip, which installs each peer into its own virtual
environment in the cache folder (`REGARD_CACHE`, or ~/.cache/regard), with the torch that regard runs on.
benchmarks/peers names the packages and runs the processes. A peer that cannot be installed is named in the
table. About 8 GiB of memory, 3 GiB of disk.

corpus.py has the sentences, task.py the sizes and the batches, systems.py the peers as their users call them,
ours.py regard, worker.py the process in which one system trains, measure.py the turns they take, report.py
the table.
"""
