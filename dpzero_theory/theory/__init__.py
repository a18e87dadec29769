"""The paper's theorems, and sharpened ones: a problem and a privacy level in, parameters and a bound out."""
