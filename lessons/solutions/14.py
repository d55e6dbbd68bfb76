"""Answers to the exercises of lesson 14."""


def vaswani_rate(step, dim, warmup):
    return dim**-0.5 * min(step**-0.5, step * warmup**-1.5)


def sublayer(x, f, norm, where):
    if where == "post":
        return norm(x + f(x))
    return x + f(norm(x) if where == "pre" else x)
