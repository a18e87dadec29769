"""The convergence theorems of the DPZero paper, and this package's own, as functions of numbers.

A function takes the constants of a loss and a privacy level, and returns the parameters of a private run (step size,
number of steps, smoothing, clip, noise) and a proved bound on the error of that run. Nothing is random.
"""
