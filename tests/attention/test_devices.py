"""The choice of a device by name; `Mask.to` and the like are in test_mask.py."""

import pytest
import torch

from regard.attention.devices import pick_device
from regard.errors import DeviceError


def test_auto_is_the_gpu_if_there_is_one():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees no GPU"):
        pick_device("cuda")


def test_a_name_that_is_no_device_is_an_error_with_the_names():
    with pytest.raises(DeviceError, match="device must be auto, cpu or cuda, got 'gpu'"):
        pick_device("gpu")
