"""The theorems of the DPZero paper, and sharpened ones.

Each takes the constants of a problem and a privacy level, and gives the parameters of an algorithm (step size, number
of steps, smoothing, clip, noise) and a bound on the error that it then has. All of them are functions of numbers: no
file is read or written, and nothing is random.
"""
