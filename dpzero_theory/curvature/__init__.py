"""Measures the constants that the theorems assume of a torch model's losses: smoothness, effective rank and others.

The measurements are not private. They are made at the model's own weights and on a path of gradient descent from them.
The caller gives the random generator. The model's weights are not changed, and only the command (`__main__`) writes a
file.
"""
