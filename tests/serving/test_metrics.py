"""Tests of metrics.py: the served text is in the Prometheus format, and services do not share metrics."""

import re

from prometheus_client.parser import text_string_to_metric_families

from regard.serving.metrics import ServerMetrics

SAMPLE = re.compile(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (-?[\d.e+-]+|\+Inf|NaN)')


def parse(text):
    """A strict parser: {name{labels}: value}; every sample must come after a HELP and a TYPE line."""
    result, kinds = {}, {}
    text = text.decode() if isinstance(text, bytes) else text
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
        assert name + (labels or "") not in result
        result[name + (labels or "")] = float(value)
    return result


def value(metrics, name, **labels):
    """The value of one sample, 0 if it does not exist yet."""
    return metrics.registry.get_sample_value(name, labels) or 0


def test_all_metrics_of_a_service_can_be_parsed():
    metrics = ServerMetrics()
    metrics.requests.labels("/translate", "200").inc()
    metrics.requests.labels("/translate", "200").inc(4)
    metrics.seconds.labels("/translate").observe(0.3)
    metrics.batch_texts.observe(3)
    metrics.batch_seconds.observe(0.1)
    metrics.tokens.labels("source").inc(12)
    metrics.gauge("regard_queue_texts", "Waiting.", lambda: 7)
    parsed = parse(metrics.text())
    assert parsed['regard_requests_total{route="/translate",status="200"}'] == 5
    assert parsed['regard_request_seconds_bucket{le="0.25",route="/translate"}'] == 0
    assert parsed['regard_request_seconds_bucket{le="0.5",route="/translate"}'] == 1
    assert parsed['regard_request_seconds_bucket{le="+Inf",route="/translate"}'] == 1
    assert parsed['regard_tokens_total{side="source"}'] == 12
    assert parsed["regard_queue_texts"] == 7
    assert parsed["regard_requests_in_flight"] == 0
    assert not any(name.partition("{")[0].endswith("_created") for name in parsed)


def test_the_official_parser_reads_label_values_with_any_character():
    metrics, name = ServerMetrics(), 'a "b"\\\nc'
    metrics.info(model=name, version="1")
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    assert families["regard_info"].samples[0].labels == {"model": name, "version": "1"}


def test_two_services_in_one_process_count_separately():
    first, second = ServerMetrics(), ServerMetrics()
    first.requests.labels("/translate", "200").inc()
    assert value(first, "regard_requests_total", route="/translate", status="200") == 1
    assert value(second, "regard_requests_total", route="/translate", status="200") == 0
