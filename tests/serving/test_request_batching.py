"""Tests of request_batching.py: requests share batches and get their own answers."""

import threading
import time

import pytest

from regard.serving.http_errors import RequestError
from regard.serving.metrics import ServerMetrics
from regard.serving.request_batching import Batcher
from tests.serving.test_metrics import value


class Worker:
    """Reverses each text, waits for `go` (set at once if `open`), and records the batches."""

    def __init__(self, open=True):
        self.go = threading.Event()
        self.batches = []
        if open:
            self.go.set()

    def __call__(self, options, texts, cancelled):
        assert self.go.wait(120)
        self.batches.append((options, list(texts)))
        if "bad" in texts:
            raise ValueError("bad text")
        return [f"{options}:{text[::-1]}" for text in texts]


def batcher(work, tokens=100, queue=100, workers=1, metrics=None):
    return Batcher(
        work, lambda _, text: len(text), batch_tokens=tokens, queue=queue, workers=workers, metrics=metrics
    )


def occupy_worker(work, pool):
    """Occupy the only worker with a first request, so that later requests wait."""
    first = pool.submit("first", ["x"])
    while pool.waiting:
        time.sleep(0.001)
    return first


def test_waiting_texts_share_a_batch_and_get_their_own_answers():
    work = Worker(open=False)
    pool = batcher(work)
    occupy_worker(work, pool)
    pending = [pool.submit("a", [f"{i}-one", f"{i}-two"]) for i in range(5)]
    assert pool.waiting == 10
    work.go.set()
    assert [p.result(10) for p in pending] == [[f"a:eno-{i}", f"a:owt-{i}"] for i in range(5)]
    assert [len(texts) for _, texts in work.batches] == [1, 10]
    assert pool.waiting == 0
    pool.close()


def test_a_batch_has_one_set_of_options_and_a_bounded_cost_and_groups_take_turns():
    work = Worker(open=False)
    pool = batcher(work, tokens=10)
    occupy_worker(work, pool)
    many = pool.submit("a", ["four"] * 7)
    other = pool.submit("b", ["four"])
    work.go.set()
    assert many.result(10) == ["a:ruof"] * 7
    assert other.result(10) == ["b:ruof"]
    assert [(o, len(t)) for o, t in work.batches] == [("first", 1), ("a", 3), ("b", 1), ("a", 3), ("a", 1)]
    pool.close()


def test_an_error_in_one_request_does_not_affect_the_others():
    work = Worker(open=False)
    pool = batcher(work)
    occupy_worker(work, pool)
    good, bad, other = (pool.submit("a", texts) for texts in (["one"], ["two", "bad"], ["six"]))
    work.go.set()
    assert good.result(10) == ["a:eno"]
    assert other.result(10) == ["a:xis"]
    with pytest.raises(ValueError, match="bad text"):
        bad.result(10)
    assert pool.submit("a", ["more"]).result(10) == ["a:erom"]  # the worker still runs
    pool.close()


def test_an_error_in_the_cost_of_a_text_affects_only_that_text():
    def cost(_, text):
        if text == "bad":
            raise ValueError("no cost")
        return 1

    pool = Batcher(lambda _, texts, cancelled: texts, cost, batch_tokens=9, queue=9)
    with pytest.raises(ValueError, match="no cost"):
        pool.submit("a", ["bad"]).result(10)
    assert pool.submit("a", ["good"]).result(10) == ["good"]
    pool.close()


def test_a_full_queue_refuses_at_once_with_retry_after():
    work = Worker(open=False)
    pool = batcher(work, queue=3)
    occupy_worker(work, pool)
    accepted = pool.submit("a", ["one", "two"])
    with pytest.raises(RequestError, match="2 texts are waiting and the queue holds 3") as refused:
        pool.submit("a", ["three", "four"])
    assert refused.value.status == 429
    assert refused.value.headers == {"retry-after": "1"}
    last = pool.submit("a", ["six"])
    work.go.set()
    assert accepted.result(10) + last.result(10) == ["a:eno", "a:owt", "a:xis"]
    pool.close()


def test_cancelled_texts_are_not_computed():
    work = Worker(open=False)
    pool = batcher(work)
    occupy_worker(work, pool)
    left = [pool.submit("a", ["left", "gone"]) for _ in range(3)] + [pool.submit(i, ["s"]) for i in range(90)]
    accepted = pool.submit("a", ["kept"])
    assert all(p.cancel() for p in left)
    work.go.set()
    assert accepted.result(10) == ["a:tpek"]
    assert [texts for _, texts in work.batches] == [["x"], ["kept"]]
    assert pool.waiting == 0
    pool.close()


def test_closing_finishes_accepted_texts_and_refuses_new_ones():
    work = Worker(open=False)
    pool = batcher(work, tokens=3)
    pending = [pool.submit("a", [f"{i}"]) for i in range(20)]
    threading.Timer(0.05, work.go.set).start()
    pool.close()
    assert [p.result(0) for p in pending] == [[f"a:{i}"[:2] + f"{i}"[::-1]] for i in range(20)]
    with pytest.raises(RequestError, match="shutting down") as refused:
        pool.submit("a", ["late"])
    assert refused.value.status == 503


def test_a_request_without_texts_gets_no_results():
    pool = batcher(Worker())
    assert pool.submit("a", []).result(0) == []
    pool.close()


def test_many_threads_and_workers_lose_nothing():
    metrics, result = ServerMetrics(), {}
    pool = batcher(Worker(), tokens=30, queue=10_000, workers=3, metrics=metrics)

    def submit(n):
        for i in range(50):
            result[n, i] = pool.submit(i % 3, [f"{n}.{i}", f"{i}.{n}"]).result(10)

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert result == {
        (n, i): [f"{i % 3}:{f'{n}.{i}'[::-1]}", f"{i % 3}:{f'{i}.{n}'[::-1]}"]
        for n in range(8)
        for i in range(50)
    }
    assert value(metrics, "regard_batch_texts_sum") == 800


def test_a_batch_with_too_few_results_is_an_error_and_the_worker_continues():
    pool = Batcher(
        lambda _, texts, cancelled: [text for text in texts if text != "lost"],
        lambda *_: 1,
        batch_tokens=9,
        queue=9,
    )
    with pytest.raises(AssertionError, match="0 answers to 1 texts"):
        pool.submit("a", ["lost"]).result(10)
    assert pool.submit("a", ["good"]).result(10) == ["good"]
    pool.close()


def test_a_result_cut_off_by_the_deadline_is_an_error():
    def work(options, texts, cancelled):
        while not cancelled[0]():  # like a search, which stops at the first step after the deadline
            time.sleep(0.001)
        return ["incomplete" for _ in texts]

    pool, answers = batcher(work), []
    future = pool.submit("a", ["text"], seconds=0.01, on_answer=lambda *answer: answers.append(answer))
    with pytest.raises(TimeoutError):
        future.result(10)
    assert answers == []
    pool.close()
