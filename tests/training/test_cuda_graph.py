"""The shapes that batches are padded to for CUDA graphs."""

import pytest

from regard.data.batch_iterator import Batches
from regard.training.cuda_graph import LENGTH_MULTIPLE, GraphShapes
from tests.data.test_batch_iterator import home, prepared, tokenizer  # noqa: F401 (fixtures)


@pytest.mark.parametrize(("multiple", "sentences"), [(1, None), (4, None), (8, None), (4, 12)])
def test_every_batch_fits_its_shape_and_shapes_are_few(prepared, multiple, sentences):  # noqa: F811
    stream = Batches(prepared, tokens=400, seed=1, multiple=multiple, max_sentences=sentences)
    shapes, result = GraphShapes(400, sentences, multiple), set()
    for batch in stream.once():
        sizes = len(batch), batch.source.shape[1], batch.target.shape[1] - 1
        shape = shapes.pad(*sizes)
        assert all(size <= padded for size, padded in zip(sizes, shape, strict=True))
        assert max(shape[1:]) % (LENGTH_MULTIPLE if multiple == 1 else multiple) == 0
        result.add(shape)
    assert len(result) <= stream.per_epoch() / 4
    widths = {max(lengths) for _, *lengths in result}
    assert len({(rows, max(lengths)) for rows, *lengths in result}) == len(widths)  # one number of rows each


def test_batches_made_of_multiples_are_padded_within_their_budget(prepared):  # noqa: F811
    batches = list(Batches(prepared, tokens=400, seed=1, multiple=4).once())
    assert batches
    for batch in batches:
        rows, source, target = GraphShapes(400, None, 4).pad(
            len(batch), batch.source.shape[1], batch.target.shape[1] - 1
        )
        assert rows * max(source, target) <= 400
