"""The trainable weights of a torch module, and the random directions along which a run shifts and moves them."""
