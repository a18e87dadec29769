"""Losses that only experiments and checks use, with their constants, and fast ways to run methods on them."""
