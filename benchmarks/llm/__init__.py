"""The language-model experiments of the paper, on the library's mechanism.

tasks.toml, tasks      the ten tasks as data
records                records from Hugging Face or local files; splits with a counted n
prompts                templates to token ids; only the record's own text is ever shortened
scoring, generation    per-record losses and scores; greedy answers and token F1
models                 masked, causal and encoder models; which weights are trained
zeroth, first_order    the methods
privacy                the noise of a run and its complete privacy statement
runs, __main__         one configuration
grids, table           the rows of the paper's tables, ours beside the paper's
memory                 step time and peak memory at full size, random weights
"""
