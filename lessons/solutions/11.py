"""Answers to the exercises of lesson 11."""


def aer(links, sure, possible):
    return 1 - (len(links & sure) + len(links & possible)) / (len(links) + len(sure))


def mutual_links(weights):
    best_source, best_target = weights.argmax(1).tolist(), weights.argmax(0).tolist()
    return {(s, t) for t, s in enumerate(best_source) if best_target[s] == t}
