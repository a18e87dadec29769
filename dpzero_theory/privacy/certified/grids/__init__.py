"""Laws of sums of privacy losses, on grids of numbers, by Fourier transforms or by direct addition."""
