"""Certified brackets of delta(epsilon) for compositions of releases.

The derivations of all formulas are in the Markdown file of this folder.
"""
