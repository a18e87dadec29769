"""Private runs inside a Hugging Face Trainer."""
