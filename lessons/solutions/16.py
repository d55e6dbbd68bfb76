"""Answers to the exercises of lesson 16."""


def training_flops(parameters, tokens):
    return 6 * parameters * tokens


def undominated(models):
    def beats(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    return {
        name for name, model in models.items() if not any(beats(other, model) for other in models.values())
    }
