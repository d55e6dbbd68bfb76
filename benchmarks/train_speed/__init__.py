"""Training throughput of regard beside Joey NMT, Hugging Face Marian and x-transformers. `python -m benchmarks.train_speed --help`.

What it needs: regard installed (`pip install -e .`), and pip, with which each peer is put into a virtual environment of its own in
the cache folder (`REGARD_CACHE`, or ~/.cache/regard), with the torch that regard runs on. benchmarks/peers names the packages and
runs the processes. A peer that cannot be installed is said so in the table. About 8 GiB of memory, 3 GiB of disk.

Where things are: corpus.py the sentences, task.py the sizes and the batches, systems.py the peers as their users call them,
ours.py regard, worker.py the process in which one system trains, measure.py the turns they take, report.py the table.
"""
