"""The public names: the top level, and those of each subpackage. Importing regard needs torch alone.

Covers lazy.py.
"""

import subprocess
import sys
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

import regard

# What a user types first.
TOP = """
attend explain weights watch intervene lookup draw
ScaledDot Additive Bilinear Causal Window Padding ALiBi Rotary Sinusoidal Softmax Sparsemax MultiHead Cache
train resume build load Recipe Tokenizer huggingface RegardError
translate generate classify tag embed align fast Beam Sample Constraints Limits Ensemble
"""
# By subpackage. A class at the top level is listed by its subpackage too; a function is in one place.
SUBPACKAGES = {
    "attention": """
        ALiBi Additive Bias Bilinear Causal Channel Cosine Dense Diagonal Dilated Distance Documents Dot
        Edit Energy Entmax Hard HeadDiversity Learned Mapped Mask Match Normalizer Packed Padding Permuted
        Pinned Plan Prefix Raw Recorded RelativeBuckets RelativeVectors Rotary ScaledDot Seen Sigmoid
        Sinusoidal Softmax Sparsemax Uniform Weights Window Zero head_diversity lookup_path
    """,
    "conformance": "CLASSES Case Outcome Refused case check load",
    "data": """
        BIO Batch Batches BpeDropout IO IOBES Parser Span Tokenizer Windows add_corpora corpora get
        guess_language load_corpus read_vectors remove_corpora spans
    """,
    "decoding": """
        Beam Constraints Ensemble Hypothesis Limits Sample SearchTrace Strategy TracedBeam attention_maps
        fast why_not
    """,
    "diagrams": "Graph PositionPicture position_similarity",
    "errors": """
        DataError DeviceError DtypeError FolderError KernelError OptionError RecipeError RegardError
        ShapeError
    """,
    "evaluation": """
        BiasProbe Comparison Cost Draws FaithfulnessResult LanguageScores LayerTime MEASURES MeasureOptions
        MetricComparison PropertyResult RATES TimesByLength TrainingCost bias_probe bleu_by_length
        brevity_penalty
        by_length choose_alignment classification
        compare_labels compare_statistics compare_tags compare_translations corpus_bleu cost count_text
        diagnostic_mlp
        estimated_flops faithfulness is_equivariant is_separable layer_weights ngrams precision
        seed_variance
        sentence_bleu tagging_scores time_by_length training_cost translation_scores view_agreement
    """,
    "huggingface": "register",
    "interactions": """
        FactorizationMachine FactorizationMachineClassifier Linear LinearClassifier LowRank
        MatrixFactorization MatrixFactorizationClassifier Polynomial2 Polynomial2Classifier Recommender
    """,
    "interchange": "FORMATS export_model",
    "layers": """
        Cache Convolution FeedForward LayerNorm MultiHead Recurrence Residual SlicedMultiHead StaticCache
    """,
    "models": "Classifier ClassifierEnsemble Embedder LanguageModel Tagger Translator crf known_models",
    "optimization": "OPTIMIZERS OptimizerOptions SCHEDULES ScheduleContext ScheduleOptions",
    "lessons": """
        Lesson WrongAnswer by_size check_answers exercise expect find_lesson list_lessons notebook read_log
        run_lesson show
    """,
    "pictures": "HeadGrid LineChart MatrixPicture Picture save_pictures",
    "pipelines": """
        AlignmentHead Classification HeadTraining Translation View pharaoh stream train_alignment_head
        word_attention
    """,
    "recipe": "Recipe add_folder difference dump_recipe load_recipe",
    "search": "Bm25Search HybridSearch Index IndexInfo VectorSearch build_index read_documents",
    "tasks": "Evaluation Predictions TASKS Task get_task",
}


def test_the_names_at_the_top_level_are_these():
    assert sorted(regard.__all__) == sorted(TOP.split())
    assert all(getattr(regard, name).__doc__ for name in regard.__all__)


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_the_names_of_a_subpackage_are_these(package):
    module = import_module(f"regard.{package}")
    assert sorted(module.__all__) == sorted(SUBPACKAGES[package].split())
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_a_name_in_two_places_is_one_object(package):
    module = import_module(f"regard.{package}")
    shared = set(module.__all__) & set(regard.__all__) - ({"load"} if package == "conformance" else set())
    assert all(getattr(module, name) is getattr(regard, name) for name in shared)
    assert all(isinstance(getattr(regard, name), type) or name == "fast" for name in shared)


def test_every_folder_with_public_names_is_listed():
    folders = Path(regard.__file__).parent.glob("*/__init__.py")
    assert {path.parent.name for path in folders if "__all__ =" in path.read_text(encoding="utf-8")} == set(
        SUBPACKAGES
    ) - {"errors"}


def test_subpackages_need_no_import_of_their_own():
    code = (
        "import regard; print(regard.evaluation.cost, regard.attention.Dot, regard.layers.Convolution, "
        "regard.models.Translator, regard.errors.ShapeError, regard.search.Index)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(
        name in done.stdout for name in ("cost", "Dot", "Convolution", "Translator", "ShapeError", "Index")
    )


def test_a_missing_name_is_reported_by_its_package():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'Attention'"):
        getattr(regard, "Attention")  # noqa: B009
    with pytest.raises(AttributeError, match="module 'regard.layers' has no attribute 'Attention'"):
        getattr(regard.layers, "Attention")  # noqa: B009


def test_dir_shows_the_public_names_and_the_subpackages():
    listed = dir(regard)
    assert set(regard.__all__) <= set(listed)
    assert all(ismodule(getattr(regard, name)) for name in set(listed) - set(regard.__all__))


def test_importing_regard_loads_nothing_beside_torch_and_the_standard_library():
    code = (
        "import sys, torch; before = set(sys.modules); import regard; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"regard", "torch"}
