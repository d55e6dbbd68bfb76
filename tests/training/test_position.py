"""Which validation counts as the best."""

from regard.training.position import TrainingPosition


def enter(progress, step, **scores):
    progress.step = step
    return progress.consider(scores, keep=2)


def test_a_higher_bleu_is_better_and_at_the_same_bleu_a_lower_loss():
    progress = TrainingPosition()
    assert enter(progress, 1, bleu=0.0, loss=5.0) == (True, True)
    assert enter(progress, 2, bleu=0.0, loss=4.0) == (True, True)
    assert enter(progress, 3, bleu=1.0, loss=4.5) == (True, True)
    assert enter(progress, 4, bleu=0.5, loss=1.0) == (True, False)
    assert enter(progress, 5, bleu=0.1, loss=1.0) == (False, False)
    assert [b["step"] for b in progress.best] == [3, 4] and progress.waited == 2 and progress.validated == 5


def test_a_language_model_is_judged_by_its_loss_alone():
    progress = TrainingPosition()
    enter(progress, 1, loss=2.0, perplexity=7.4)
    assert enter(progress, 2, loss=1.9, perplexity=6.7) == (True, True)
    assert enter(progress, 3, loss=float("nan"), perplexity=float("nan")) == (False, False)


def test_of_equals_the_earlier_one_is_kept():
    progress = TrainingPosition()
    for step in (1, 2, 3):
        enter(progress, step, loss=2.0)
    assert [b["step"] for b in progress.best] == [1, 2]


def test_progress_goes_through_json():
    progress = TrainingPosition(step=3, tokens=100)
    enter(progress, 4, loss=2.0)
    assert TrainingPosition.restored(progress.state()) == progress
