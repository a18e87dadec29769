"""The checks of an audit, in one module for each kind of fault. Each module lists its checks in `CHECKS`."""
