"""Privacy accounting and theory verification for private zeroth-order optimisation.

Import what you need from its own module: ``dpzero_theory.theory``, ``dpzero_theory.privacy``,
``dpzero_theory.optim``, ``dpzero_theory.synthetic``, ``dpzero_theory.sphere``.
"""

__version__ = "0.1.0"
