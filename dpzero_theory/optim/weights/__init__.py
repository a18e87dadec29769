"""What a run evaluates and moves: the trainable weights of a torch module, and the random directions."""
