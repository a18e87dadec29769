"""Lists the commands of this package:  python -m dpzero_theory"""

import sys

_COMMANDS = {
    "privacy": "noise, epsilon, delta, steps, batch or n of a private run, from the other five",
    "privacy.checker": "check a privacy certificate by means that share nothing with the accountant",
    "params": "what a theorem says to set for n, epsilon, delta and a problem, and what it then promises",
    "curvature": "measure a model: the numbers of its loss that `params` asks for",
    "optim.verify": "what the folder of a private run proves, without its data",
    "audit": "test whether a training loop does what it claims",
}
"""What each command is for, by the module of this package that runs it."""


def main() -> int:
    """Print the commands of this package, each with what it is for, and return 0."""
    print("python -m dpzero_theory.NAME --help says more of each NAME:")
    for name, purpose in _COMMANDS.items():
        print(f"  {name:16} {purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
