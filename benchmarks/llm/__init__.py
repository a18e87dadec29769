"""The paper's language-model experiments, run with this library.

- tasks.toml, tasks; records; prompts: the tasks as data; their records and splits, with n counted; token ids
- models (sizes.toml), scoring: the models; losses and scores of each record
- __main__: one run of the paper, with its complete privacy statement
- top, clipping, tuned; encoder: what is trained of a pretrained model, on which task, by which method; of an encoder
- last_norm, last_norm_tasks, last_layer, many_directions, directions_total: such experiments; demo: one run, in
  minutes
- only_d: only d varies
- pages: the tables of the pages
"""
