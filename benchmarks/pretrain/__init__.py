"""Small OPT and RoBERTa models, made here from public sentences: real language models without a download.

- text: the sentences, a vocabulary of byte pairs learned from them, sentences as token ids, perplexity
- models: the two families at any width
- __main__: pretraining, which may be interrupted and resumed; the command makes the weights, which are never committed
"""
