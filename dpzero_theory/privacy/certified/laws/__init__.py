"""The privacy-loss laws of one release: dominating pairs, their losses, and finite pairs above and below them."""
