"""Transformer base on Europarl en-de: regard beside Hugging Face Marian at equal training time.

experiment.py has the recipe, the data and the batches of both, marian.py the training and decoding of Hugging
Face, scores.py BLEU, significance and the table, __main__.py the command.
"""
