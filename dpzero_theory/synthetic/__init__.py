"""Problems with known constants, and engines that run an algorithm at thousands of settings at once."""
