"""delta(epsilon) of compositions by integrals in the complex plane, and closed forms for one release."""
