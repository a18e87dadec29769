"""Sweeps over steps, step sizes and clips on synthetic problems, among them the paper's synthetic experiment."""
