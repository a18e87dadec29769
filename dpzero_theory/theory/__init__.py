"""The paper's theorems, and sharpened ones, as functions: a problem and a privacy level in, parameters and a
bound out.
"""
