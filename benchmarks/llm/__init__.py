"""The paper's language-model experiments, run with this library.

- tasks.toml, tasks: the ten tasks as data
- records: records from Hugging Face or local files, and their splits, with n counted from the records
- prompts: templates to token ids; only the record's own texts are ever shortened
- scoring, generation, evaluation: losses and scores of each record; greedy answers and token F1; the metric
- models, frozen: masked, causal and encoder models; which weights are trained; frozen layers, run once for each record
- zeroth_order, first_order: the methods
- configuration, privacy, runs: what a run is, its complete privacy statement, and how it becomes rows
- __main__, demo: one configuration; private fine-tuning of a real encoder in minutes
- tables.toml, grids, table: the runs of the paper's tables, ours beside the paper's numbers
- ordering: the order of the methods in the accuracy table, checked with standard errors
- sizes.toml, memory: step time and peak memory at full size, with random weights
- last_norm, rewards: a pretrained model tuned privately in seconds; the 0-1 error as what is trained
"""
