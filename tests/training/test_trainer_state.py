"""Counters of a run and its best validations."""

from regard.training.trainer_state import TrainerState


def validate(state, step, **scores):
    state.step = step
    return state.add_validation(scores, keep=2)


def test_higher_bleu_is_better_and_at_equal_bleu_lower_loss():
    state = TrainerState()
    assert validate(state, 1, bleu=0.0, loss=5.0) == (True, True)
    assert validate(state, 2, bleu=0.0, loss=4.0) == (True, True)
    assert validate(state, 3, bleu=1.0, loss=4.5) == (True, True)
    assert validate(state, 4, bleu=0.5, loss=1.0) == (True, False)
    assert validate(state, 5, bleu=0.1, loss=1.0) == (False, False)
    assert [validation["step"] for validation in state.best] == [3, 4]
    assert (state.without_improvement, state.last_validation) == (2, 5)


def test_without_the_metric_the_loss_decides():
    state = TrainerState()
    validate(state, 1, loss=2.0, perplexity=7.4)
    assert validate(state, 2, loss=1.9, perplexity=6.7) == (True, True)
    assert validate(state, 3, loss=float("nan"), perplexity=float("nan")) == (False, False)


def test_of_equal_validations_the_earlier_is_kept():
    state = TrainerState()
    for step in (1, 2, 3):
        validate(state, step, loss=2.0)
    assert [validation["step"] for validation in state.best] == [1, 2]


def test_the_state_is_restored_from_its_dict():
    state = TrainerState(step=3, tokens=100)
    validate(state, 4, loss=2.0)
    assert TrainerState(**state.as_dict()) == state
