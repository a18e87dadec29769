"""The checks of an audit, in one module for each kind of fault; each module lists them in `CHECKS`."""
