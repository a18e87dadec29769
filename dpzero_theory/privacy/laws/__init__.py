"""The laws of the privacy loss log dP/dQ of one release: pairs of laws (P, Q) that dominate the release, and pairs with
finitely many outcomes that bound such pairs."""
