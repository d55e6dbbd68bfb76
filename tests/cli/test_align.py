"""Tests of align.py: files, links, gold links, errors in one sentence."""

import gzip
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from regard.data.tokenizer import Tokenizer
from regard.evaluation.alignment import Gold, score
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.pipelines.align import View, align, align_words, best_view, clearest_view
from regard.pipelines.alignment_head import AlignmentHead
from regard.pipelines.joint_alignment import JointAlignmentHead
from regard.pipelines.word_links import LinkSelection, flipped, grow_diag_final_and, pharaoh
from tests.models.small import DECODERS, ENCODERS

SOURCES = ["ein kleiner Hund läuft", "", "zwei Hunde laufen 🐕", "Hund", "läuft ein Hund"]
TARGETS = ["a small dog runs", "", "two dogs run 🐕", "dog", "does a dog run"]
GOLD = "0-0 1-1 2-2 3-3\n\n0-0 1-1 2-2 3?3\n0-0\n1-1 2-2 0-3 0?0\n"


def write(path, seed, encoder=ENCODERS["transformer"], decoder=DECODERS["transformer"]):
    torch.manual_seed(seed)
    tokenizer = Tokenizer.train([*SOURCES, *TARGETS], "bpe", 60)
    config = AutoregressiveOptions.model_validate(
        {"dim": 32, "encoder": encoder, "decoder": decoder}
    ).model_dump()
    model = build(config, len(tokenizer) if encoder else None, len(tokenizer))
    folders.save(path, model, config, tokenizer if encoder else None, tokenizer, {})
    return folders.load(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Untrained models of both directions; the tests check what is computed from their attention."""
    path = tmp_path_factory.mktemp("align")
    result = write(path / "forward", 1), write(path / "backward", 2)
    write(path / "language", 3, encoder=None)
    write(path / "blind", 4, decoder=DECODERS["none"])
    (path / "src").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (path / "tgt.gz").write_bytes(gzip.compress(("\n".join(TARGETS) + "\n").encode()))
    (path / "gold").write_text(GOLD)
    (path / "short").write_text("ein Hund\n")
    (path / "long").write_text("a\nb\n" + "word " * 2000 + "\nd\ne\n")
    (path / "bad").write_bytes(b"a\n\xff\xfe\xfa\nb\nc\nd\n")
    (path / "outside").write_text("0-0 7-1\n\n\n\n\n")
    return path, *result


@pytest.fixture
def run(run_regard):
    return partial(run_regard, "align")


def lines(links):
    return "".join(f"{pharaoh(link)}\n" for link in links)


def test_every_line_gets_its_links_and_an_empty_one_none(run, made):
    path, model, _ = made
    code, out, err = run("-i", path / "src", path / "tgt.gz", "--model", path / "forward")
    assert (code, err) == (0, "")
    assert out == lines(align(SOURCES, TARGETS, model))
    assert out.splitlines()[1] == ""


def test_layer_head_shift_and_threshold_are_passed_on(run, made):
    path, model, _ = made
    options = ["--layer", 0, "--head", 2, "--shift", "--threshold", 0.2]
    _, out, _ = run("-i", path / "src", path / "tgt.gz", *options, "--model", path / "forward")
    assert out == lines(align(SOURCES, TARGETS, model, view=View(0, 2, True), threshold=0.2))
    _, out, err = run("-i", path / "src", path / "tgt.gz", "--head", "best", "--model", path / "forward")
    view = best_view(SOURCES, TARGETS, model)
    assert out == lines(align(SOURCES, TARGETS, model, view=view))
    assert err == f"regard: by layer {view.layer}, head {view.head}\n"


def test_two_directions_are_joined(run, made):
    path, model, back = made
    forward, backward = align(SOURCES, TARGETS, model), [flipped(b) for b in align(TARGETS, SOURCES, back)]
    for name, join in (("grow-diag-final-and", grow_diag_final_and), ("intersection", frozenset.__and__)):
        _, out, _ = run(
            "-i",
            path / "src",
            path / "tgt.gz",
            "--reverse",
            path / "backward",
            "--join",
            name,
            "--model",
            path / "forward",
        )
        assert out == lines(join(a, b) for a, b in zip(forward, backward, strict=True))


def test_mutual_links_the_best_layer_and_joint_weights(run, made):
    path, model, back = made
    _, out, _ = run("-i", path / "src", path / "tgt.gz", "--mutual", "--model", path / "forward")
    assert out == lines(align(SOURCES, TARGETS, model, mutual=True))
    ways = [(SOURCES, TARGETS, model), (TARGETS, SOURCES, back)]
    views = [clearest_view(*way) for way in ways]
    code, out, err = run(
        "-i",
        path / "src",
        path / "tgt.gz",
        "--layer",
        "best",
        "--reverse",
        path / "backward",
        "--model",
        path / "forward",
    )
    assert code == 0
    assert [line.split(",")[0] for line in err.splitlines()] == [
        f"regard: by layer {views[0].layer}",
        f"regard: backwards by layer {views[1].layer}",
    ]
    forward, backward = (dict(align_words(*way, view)) for way, view in zip(ways, views, strict=True))
    joined = [LinkSelection().joined(forward[i].weights, backward[i].weights) for i in range(len(SOURCES))]
    assert out == lines(joined)


def test_gold_scores_the_links_and_output_keeps_them(run, made, tmp_path):
    path, model, _ = made
    links = align(SOURCES, TARGETS, model)
    code, out, err = run(
        "-i",
        path / "src",
        path / "tgt.gz",
        "--gold",
        path / "gold",
        "-o",
        tmp_path / "links",
        "--model",
        path / "forward",
    )
    assert (code, err) == (0, "")
    sure = ["0-0 1-1 2-2 3-3", "", "0-0 1-1 2-2", "0-0", "1-1 2-2 0-3"]
    parsed = [frozenset(tuple(map(int, link.split("-"))) for link in row.split()) for row in sure]
    more = [{}, {}, {(3, 3)}, {}, {(0, 0)}]
    scored = score(links, [Gold(s, s.union(p)) for s, p in zip(parsed, more, strict=True)])
    assert out == f"{scored}\n" and out.startswith("AER ")
    assert (tmp_path / "links").read_text() == lines(links)
    assert [p.name for p in tmp_path.iterdir()] == ["links"]
    _, out, _ = run(
        "-i", path / "src", path / "tgt.gz", "--gold", path / "gold", "--json", "--model", path / "forward"
    )
    assert json.loads(out) == scored.as_dict()


def test_show_draws_each_pair_above_its_links(run, made):
    path, model, _ = made
    _, out, _ = run("-i", path / "src", path / "tgt.gz", "--show", "--model", path / "forward")
    assert "\x1b" not in out  # not a terminal
    assert "\nsmall ░" in out and "\ndogs ░" in out
    for links in align(SOURCES, TARGETS, model):
        assert pharaoh(links) in out.splitlines()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere", "src", "tgt.gz"), "there is no folder"),
        (("language", "src", "tgt.gz"), "is a language model, and aligning takes a translator"),
        (("blind", "src", "tgt.gz"), "no cross-attention"),
        (("forward", "src", "short"), "src has 5 lines and"),
        (("forward", "missing", "tgt.gz"), "there is no file"),
        (("forward", "bad", "tgt.gz"), "line 2 of"),
        (("forward", "long", "tgt.gz"), "line 3 of"),
        (("forward", "src", "tgt.gz", "--layer", "3"), "layer 3 does not exist"),
        (
            ("forward", "src", "tgt.gz", "--layer", "first"),
            "--layer must be an integer from 0, or best, got 'first'",
        ),
        (("forward", "src", "tgt.gz", "--layer", "best", "--shift"), "leave --head and --shift out"),
        (
            ("forward", "src", "tgt.gz", "--mutual", "--threshold", "0.2"),
            "two ways to select links; give one",
        ),
        (("blind", "src", "tgt.gz", "--layer", "best"), "no cross-attention"),
        (
            ("forward", "src", "tgt.gz", "--head", "first"),
            "--head must be an integer from 0, or best, got 'first'",
        ),
        (("forward", "src", "tgt.gz", "--head", "best", "--layer", "0"), "leave --layer out"),
        (("forward", "src", "tgt.gz", "--join", "some"), "got 'some'"),
        (("forward", "src", "tgt.gz", "--json"), "--gold FILE"),
        (("forward", "src", "tgt.gz", "--gold", "outside"), "gold link 7-1 of sentence 1"),
        (("forward", "src", "tgt.gz", "--output", "no/where"), "its folder does not exist"),
        (("forward", "src", "tgt.gz", "--reverse", "language"), "is a language model"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence_and_exit_code_two(run, made, args, message):
    path = made[0]
    files = {"--gold", "--output", "--reverse"}
    model, *named = [path / arg if i < 3 or args[i - 1] in files else arg for i, arg in enumerate(args)]
    code, out, err = run("-i", *named, "--model", model)
    assert code == 2
    assert message in err
    assert "Traceback" not in err and err.count("\n") == 1
    assert out == ""


def command(path):
    """`regard align` as a separate process."""
    files = [str(path / name) for name in ("forward", "src", "tgt.gz")]
    return [sys.executable, "-m", "regard", "align", "-m", files[0], "-i", *files[1:]]


def test_a_closed_pipe_ends_the_command_without_an_error(made):
    process = subprocess.Popen(command(made[0]), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(120) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_an_error_of_one_sentence(made):
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(made[0]), stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("regard: the disk of standard output is full")
    assert done.stderr.count("\n") == 1


def test_heads_are_learned_from_links_stored_with_the_models_and_used(made, run):
    path, forward, _ = made
    files = ("-i", path / "src", path / "tgt.gz", "--model", path / "forward", "--reverse", path / "backward")
    code, _, errors = run(*files, "--learned")
    assert code == 2 and "there is no alignment head" in errors
    code, _, errors = run(*files, "--learn", "--steps", 3)
    assert code == 0 and errors.count("aligner.safetensors") == 2
    code, out, _ = run("-i", path / "src", path / "tgt.gz", "--model", path / "forward", "--learned")
    head = AlignmentHead.load(path / "forward", forward)
    assert code == 0 and out == lines(align(SOURCES, TARGETS, forward, view=head))
    code, out, _ = run(*files, "--learned")
    assert code == 0 and len(out.splitlines()) == 5 and out.splitlines()[1] == ""
    code, _, errors = run(*files, "--learned", "--layer", 0)
    assert code == 2 and "leave out --learn, --layer, --head and --shift" in errors
    code, _, errors = run(*files, "--learn", "--gold", path / "gold")
    assert code == 2 and "--learn writes alignment heads instead of links" in errors


def test_a_joint_head_is_learned_stored_with_the_forward_model_and_used(made, run):
    path, forward, backward = made
    files = ("-i", path / "src", path / "tgt.gz", "--model", path / "forward")
    both = (*files, "--reverse", path / "backward")
    code, _, errors = run(*both, "--learned", "--joint")
    assert code == 2 and "there is no joint alignment head" in errors
    code, _, errors = run(*both, "--learn", "--joint", "--steps", 3)
    assert code == 0 and "joint-aligner.safetensors; use it with --learned --joint" in errors
    code, out, _ = run(*both, "--learned", "--joint")
    head = JointAlignmentHead.load(path / "forward", forward, backward)
    weights = {i: pair for i, *pair in head.align_words(SOURCES, TARGETS, forward, backward)}
    expected = [LinkSelection().joined(*weights[i]) for i in range(len(SOURCES))]
    assert code == 0 and out == lines(expected)
    for options in (("--learned", "--joint"), ("--joint", "--reverse", path / "backward")):
        code, _, errors = run(*files, *options)
        assert code == 2 and "--joint is for --learn or --learned with --reverse MODEL" in errors
