"""The systems: models of regard, and of surprise with default and with tuned settings.

Our features and factors were chosen on a separate split (20 % held out, seed 98), and so were Surprise's
options: a comparison with its defaults alone would be unfair (SVD there: 0.9001 by default, 0.8783 tuned).
"""

OURS = {
    "mean": "the mean rating",
    "biases": "linear model (user, item)",
    "polynomial": "polynomial, order 2 (user, item, genres)",
    "factorization": "matrix factorisation",
    "rendle": "factorisation machine, Rendle's (user, item, genres)",
    "machine": "factorisation machine [W 0], [0 V] (+ genres, raters)",
    "machine+history": "the same + the user's history (SVD++'s)",
}
SURPRISE = {
    "BaselineOnly": "surprise BaselineOnly",
    "SVD": "surprise SVD, its defaults",
    "SVD-tuned": "surprise SVD, tuned",
    "SVDpp": "surprise SVD++, its defaults",
    "SVDpp-tuned": "surprise SVD++, tuned a little",
}
TUNED = {
    "SVD-tuned": {
        "n_factors": 100,
        "reg_all": 0.1,
        "n_epochs": 80,
        "lr_all": 0.01,
    },  # best of 75; more factors were not tried
    "SVDpp-tuned": {
        "n_factors": 20,
        "reg_all": 0.05,
        "n_epochs": 30,
        "lr_all": 0.007,
    },  # best of 6: a fit takes half a minute
}
