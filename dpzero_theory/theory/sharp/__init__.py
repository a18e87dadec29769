"""This package's own theorems for the DPZero paper's algorithms (`proof.md`), and their bounds as functions."""
