"""benchmarks/attend/packed.py: the ways that it times compute the same attention."""

import torch
from benchmarks.attend.packed import main, ways


def test_packed_loop_and_padded_batch_are_equal_and_one_sequence_is_not():
    sizes = [3, 7, 5]
    runs = ways(sizes, gradients=False)
    packed, batch = runs["packed"](), runs["padded batch"]()
    torch.testing.assert_close(packed, runs["in a loop"]())
    unpadded = torch.cat([batch[i, :, :size] for i, size in enumerate(sizes)], -2)
    torch.testing.assert_close(packed, unpadded)
    assert not torch.allclose(packed, runs["one sequence"]())


def test_every_way_has_a_line_with_both_times(capsys):
    threads = torch.get_num_threads()
    assert main(["--rounds", "1", "--sequences", "2"]) == 0
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines[1:]]
    assert names == [
        "packed",
        "in a loop",
        "padded batch",
        "one sequence",
    ]
    assert all("with gradients" in line for line in lines[1:])
