"""Problems with known constants, and engines that run an algorithm at thousands of settings at once.

All random numbers come from streams that the caller gives; nothing is read or written.
"""
