"""The text that Prometheus reads: each line well formed, each histogram consistent."""

import re

from regard.serving.metrics import Counter, Gauge, Histogram, Metrics

SAMPLE = re.compile(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (-?[\d.e+-]+|\+Inf|NaN)')


def parse(text):
    """A strict reader of the format: {name{labels}: value}; every sample has a HELP and a TYPE before it."""
    found, kinds = {}, {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        base = re.sub("_(bucket|sum|count)$", "", name)
        assert kinds.get(name) in ("counter", "gauge") or kinds.get(base) == "histogram", line
        assert name + (labels or "") not in found
        found[name + (labels or "")] = float(value)
    return found


def test_a_counter_adds_up_by_its_labels():
    counter = Counter("c_total", "About.", "route", "status")
    counter.add("/translate", "200")
    counter.add("/translate", "200", count=4)
    counter.add("other", "404")
    assert counter.lines() == [
        'c_total{route="/translate",status="200"} 5',
        'c_total{route="other",status="404"} 1',
    ]
    assert counter.value("/translate", "200") == 5


def test_a_histogram_counts_what_lies_at_or_below_each_bound():
    histogram = Histogram("h", "About.", (0.5, 1, 2))
    for value in (0.25, 0.5, 1.5, 7):
        histogram.see(value)
    assert histogram.lines() == [
        'h_bucket{le="0.5"} 2', 'h_bucket{le="1"} 2', 'h_bucket{le="2"} 3', 'h_bucket{le="+Inf"} 4', "h_sum 9.25", "h_count 4",
    ]  # fmt: skip


def test_labels_are_escaped():
    gauge = Gauge("g", "About.", lambda: 1, {"model": 'a "b"\\\nc'})
    assert gauge.lines() == ['g{model="a \\"b\\"\\\\\\nc"} 1']


def test_all_metrics_of_a_server_can_be_read():
    metrics = Metrics()
    metrics.requests.add("/translate", "200")
    metrics.seconds.see(0.3, "/translate")
    metrics.batch_texts.see(3)
    metrics.batch_seconds.see(0.1)
    metrics.tokens.add("source", count=12)
    metrics.gauge("regard_queue_texts", "Waiting.", lambda: 7)
    found = parse(metrics.text())
    assert found['regard_requests_total{route="/translate",status="200"}'] == 1
    assert found['regard_request_seconds_bucket{route="/translate",le="0.25"}'] == 0
    assert found['regard_request_seconds_bucket{route="/translate",le="0.5"}'] == 1
    assert found['regard_tokens_total{side="source"}'] == 12
    assert found["regard_queue_texts"] == 7
    assert found["regard_requests_in_flight"] == 0
