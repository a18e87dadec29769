"""Private runs inside a Hugging Face Trainer, and what is shown of a run while it goes."""
