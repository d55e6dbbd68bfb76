"""Distribute a translation job over a Ray cluster: the chunks are translated on any number of machines, in
order.

The machines share only Ray: the model's files go through its object store, and each worker process loads them
once. A chunk is an independent task, so if a worker dies Ray gives its chunks to another. Only this process
writes, so the output is that of a job on one machine, and the job can be resumed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import DataError, OptionError, RegardError
from regard.pipelines.input import Chunk, Row
from regard.pipelines.job import Distribute, Work, model_files
from regard.pipelines.translate_file import TranslateJob, TranslateOptions, make_job

CHUNKS_PER_WORKER = 8  # chunks in memory

_jobs: dict[str, TranslateJob] = {}  # the job of a worker process, with its model


def run_on_ray(folders: Sequence[Path], options: TranslateOptions, device: str = "cpu") -> Distribute:
    """Connect to the cluster of RAY_ADDRESS, or start one here; return the `distribute` argument of
    `run_job`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise OptionError(f'this needs {error.name}; pip install "regard[ray]"') from None
    _connect(ray)
    models = ray.put([{path.name: path.read_bytes() for path in model_files(folder)} for folder in folders])
    options = replace(options, limits=replace(options.limits, workers=1))  # one task, one core
    arguments = {"models": [models], "options": options, "device": device}
    resource = "GPU" if device == "cuda" else "CPU"

    def distribute(_: Work, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, list[bytes]]]:
        most = CHUNKS_PER_WORKER * max(1, int(ray.cluster_resources().get(resource, 1)))
        while window := list(islice(chunks, most)):
            yield from zip(window, _results(ray, window, arguments, device), strict=True)

    return distribute


def _connect(ray: Any) -> None:
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    cluster = f"the cluster at RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
    try:
        if address and ":" in address:  # Ray itself tries for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        # "local" starts a new cluster; otherwise Ray looks for an earlier one, which may be dead.
        ray.init(address, **quiet) if address else ray.init("local", include_dashboard=False, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = (
            "check that it runs, and that RAY_AUTH_MODE and RAY_AUTH_TOKEN are those it was started with"
            if address
            else "try again"
        )
        raise OptionError(f"{cluster} cannot be reached or started ({reason}); {hint}") from None


def _results(ray: Any, window: list[Chunk], arguments: dict[str, Any], device: str) -> Iterator[list[bytes]]:
    """Yield the outputs of each chunk, in order."""
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [
        {"chunk": json.dumps([chunk.first, chunk.digest, [[r.line, r.text] for r in chunk.rows]])}
        for chunk in window
    ]
    tasks = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _translate,
        fn_kwargs=arguments,
        num_cpus=1,
        num_gpus=1 if device == "cuda" else None,
    )
    try:
        for row in tasks.iter_rows():
            yield list(row["data"])
    except RegardError:
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise DataError(
            f"the Ray cluster gave up on a chunk ({reason}); rerun the same command to resume"
        ) from None


def _translate(
    row: dict[str, Any], models: list[Any], options: TranslateOptions, device: str
) -> dict[str, Any]:
    """Translate one chunk, in a worker."""
    first, digest, rows = json.loads(row["chunk"])
    key = f"{models[0].hex()} {options}"
    if key not in _jobs:
        _jobs.clear()  # one model at a time
        _jobs[key] = _load(models[0], options, device)
    return {"data": _jobs[key](Chunk(first, [Row(*row) for row in rows], digest))}


def _load(models: Any, options: TranslateOptions, device: str) -> TranslateJob:
    import ray
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="regard-") as place:
        folders = []
        for i, files in enumerate(ray.get(models)):
            folders.append(Path(place) / str(i))
            folders[i].mkdir()
            for name, content in files.items():
                (folders[i] / name).write_bytes(content)
        return make_job(folders, options, device)
