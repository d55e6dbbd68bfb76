"""The lecture's WMT-2014 table, its estimate of FLOPs, and a run compared with it."""

import pytest

from regard.errors import OptionError
from regard.evaluation.training_cost import (
    RATES,
    WMT_2014,
    TrainingCost,
    compare_to_wmt14,
    estimated_flops,
    parse_rate,
    rate_of_device,
    table,
)


def test_the_table_holds_device_time_times_rate():
    base, big = WMT_2014[-2:]
    assert estimated_flops(12, 8, 9.5e12) == pytest.approx(base.flops_de, rel=0.01)  # printed as 3.3e18
    assert f"{estimated_flops(12, 8, RATES['P100']):.1e}" == "3.3e+18"
    assert f"{estimated_flops(3.5 * 24, 8, RATES['P100']):.1e}" == f"{big.flops_de:.1e}" == "2.3e+19"


def test_the_table_is_the_lectures():
    assert len(WMT_2014) == 10
    assert [row.bleu_de for row in WMT_2014] == [
        23.75,
        None,
        24.6,
        25.16,
        26.03,
        None,
        26.3,
        26.36,
        27.3,
        28.4,
    ]
    assert [row.bleu_fr for row in WMT_2014] == [
        None,
        39.2,
        39.92,
        40.46,
        40.56,
        40.4,
        41.16,
        41.29,
        38.1,
        41.0,
    ]
    assert [row.flops_de for row in WMT_2014] == [
        None,
        None,
        2.3e19,
        9.6e18,
        2e19,
        None,
        1.8e20,
        7.7e19,
        3.3e18,
        2.3e19,
    ]
    assert [row.flops_fr for row in WMT_2014] == [
        None,
        1e20,
        1.4e20,
        1.5e20,
        1.2e20,
        8e20,
        1.1e21,
        1.2e21,
        None,
        None,
    ]


def test_a_run_is_shown_with_counted_and_estimated_flops():
    run = TrainingCost("small", "Multi30k en-de", flops=6e15, hours=0.5, devices=2, rate=1e13, bleu=41.5)
    assert run.estimated_flops == pytest.approx(3.6e16)
    assert run.utilization == pytest.approx(1 / 6)
    rows = compare_to_wmt14(run)
    assert len(rows) == 8 + 9 + 1
    assert rows[-1] == {
        "model": "small", "task": "Multi30k en-de", "bleu": 41.5, "flops": 6e15,
        "estimated_flops": run.estimated_flops, "utilization": run.utilization,
    }  # fmt: skip
    assert rows[6]["model"] == "Transformer (base model)"
    assert (rows[6]["task"], rows[6]["flops"], rows[6]["estimated_flops"]) == ("WMT-2014 en-de", None, 3.3e18)
    last = table(run).splitlines()[-1].split()
    assert last[-4:] == ["41.50", "6.0e+15", "3.6e+16", "16.7%"]


def test_an_unknown_rate_leaves_the_estimate_empty():
    row = compare_to_wmt14(TrainingCost("small", "copy", flops=6e9, hours=0.01, devices=1))[-1]
    assert (row["flops"], row["estimated_flops"], row["utilization"], row["bleu"]) == (6e9, None, None, None)


def test_invalid_times_and_rates_are_errors():
    with pytest.raises(OptionError, match="hours must be a positive number, got 0"):
        estimated_flops(0, 8, 9.5e12)
    with pytest.raises(OptionError, match="rate must be a positive number, got inf"):
        estimated_flops(1, 8, float("inf"))


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        ("Tesla P100-PCIE-16GB", 9.5e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("x86_64, 1 threads", None),
        ("None", None),
    ],
)
def test_a_device_is_recognised_by_its_torch_name(device, rate):
    assert rate_of_device(device) == rate


def test_a_rate_is_a_number_or_a_device():
    assert parse_rate("9.5e12") == parse_rate("P100") == parse_rate("p100") == 9.5e12
    for text, message in (
        ("fast", "or a device, got 'fast'; known are K80"),
        ("-1", "positive"),
        ("inf", "positive"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_rate(text)
