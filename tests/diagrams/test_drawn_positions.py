"""Pictures of position schemes: the matrices are those of the formulas."""

from xml.etree import ElementTree

import pytest
import torch

import regard
from regard.diagrams import position_similarity
from regard.errors import OptionError, RegardError
from regard.models.attention_options import POSITIONS


def test_every_registered_scheme_is_drawn():
    picture = position_similarity(length=12)
    assert list(picture.matrices) == list(POSITIONS)
    root = ElementTree.fromstring(picture.svg())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(POSITIONS) <= set(texts)
    assert all(matrix.shape == (12, 12) and matrix.isfinite().all() for matrix in picture.matrices.values())


def test_sinusoidal_and_rotary_similarity_depend_on_the_distance_alone_as_in_the_formula():
    matrices = position_similarity(["sinusoidal", "rotary"], length=20, dim=64).matrices
    expected = regard.Sinusoidal(64).similarity(20)
    distance = (torch.arange(20)[:, None] - torch.arange(20)).abs()
    for matrix in matrices.values():
        assert torch.allclose(matrix, expected[distance], atol=1e-9)


def test_sinusoidal_similarity_falls_at_first_and_then_rises_and_falls():
    """What docs/tour.md and docs/pictures.md say."""
    narrow, wide = (regard.Sinusoidal(dim).similarity(2000).diff() for dim in (64, 512))
    first_rise = [int((steps > 0).nonzero()[0]) + 1 for steps in (narrow, wide)]
    assert first_rise == [6, 44]
    assert 0.45 < float((narrow > 0).double().mean()) < 0.55


def test_alibi_is_its_bias_and_a_channel_the_product_of_positions():
    matrices = position_similarity(["alibi", "channel", "none"], length=6).matrices
    t = torch.arange(6, dtype=torch.float64)
    assert torch.allclose(matrices["alibi"], -0.5 * (t[:, None] - t).abs())
    assert torch.allclose(matrices["channel"], t[:, None] * t / 25)
    assert not matrices["none"].any()


def test_the_matrices_do_not_depend_on_the_seed_and_leave_it_alone():
    torch.manual_seed(5)
    one = position_similarity("learned", length=6).matrices["learned"]
    drawn = torch.randn(1)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(1), drawn)
    assert torch.equal(position_similarity("learned", length=6).matrices["learned"], one)
    assert one.diagonal().max() == pytest.approx(1)


def test_wrong_arguments_are_refused():
    for arguments in ({"schemes": "sinus"}, {"schemes": []}, {"length": 1}, {"dim": 3}):
        with pytest.raises(RegardError):
            position_similarity(**arguments)
    with pytest.raises(OptionError, match="sinusoidal"):
        position_similarity("sinus")
