"""Certified brackets of delta(epsilon) for compositions of releases; the derivation beside says what each file does."""
