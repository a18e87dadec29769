"""Private runs as Trainers of transformers and TRL."""
