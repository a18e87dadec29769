"""The language-model experiments of the paper, on the library's mechanism.

- tasks.toml, tasks: the ten tasks as data
- records: from Hugging Face or local files; splits with a counted n
- prompts: templates to token ids; only the record's own texts are ever shortened
- scoring, generation, evaluation: per-record losses and scores; greedy answers and token F1; the metric
- models, frozen: masked, causal and encoder models; which weights are trained; the layers below, run once a record
- zeroth_order, first_order: the methods
- configuration, privacy, runs: what a run is, its complete privacy statement, and from the one to its rows
- __main__, demo: one configuration; private fine-tuning of a real encoder in minutes
- tables.toml, grids, table: the runs of the paper's tables, ours beside the paper's numbers
- ordering: the order of the methods in the accuracy table, checked with standard errors
- sizes.toml, memory: step time and peak memory at full size, random weights
- streamed: the same where the weights do not fit, layer by layer from files
"""
