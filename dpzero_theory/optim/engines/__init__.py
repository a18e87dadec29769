"""Serving engines that evaluate the losses of a run."""
