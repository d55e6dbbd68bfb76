"""The public names are a reviewed list, and importing them needs torch alone."""

import subprocess
import sys

import regard

NAMES = """
ALiBi Additive Bias Bilinear Cache Causal Channel Convolution Cosine Cost Dense DeviceError Diagonal Dilated Distance Documents Dot
DtypeError Energy Entmax Hard KernelError Learned Mask Match MultiHead Normalizer OptionError Packed Padding Plan Prefix
PropertyResult Raw Recorded Recurrence RegardError RelativeBuckets RelativeVectors Rotary ScaledDot Seen ShapeError Sigmoid
Sinusoidal SlicedMultiHead Softmax Sparsemax StaticCache Window attend cost explain is_equivariant is_separable lookup watch weights
Batch Beam DataError FolderError LanguageModel Recipe RecipeError Tokenizer Translator build load resume scores sentence_bleu train
translate Ensemble Hypothesis Sample Translation fast generate attention_maps align
Classification Classifier Embedder Index Tagger classify embed tag
huggingface
""".split()


def test_the_public_names_are_these():
    assert sorted(regard.__all__) == sorted(NAMES)
    assert all(getattr(regard, name).__doc__ for name in NAMES)


def test_importing_regard_loads_nothing_beside_torch_and_the_standard_library():
    code = (
        "import sys, torch; before = set(sys.modules); import regard; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"regard", "torch"}
