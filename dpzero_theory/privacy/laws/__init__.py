"""The laws of the privacy loss of one release: dominating pairs, and laws with finitely many outcomes that bound
them."""
