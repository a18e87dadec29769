"""Sums of privacy losses on grids, by Fourier transforms or by direct addition."""
