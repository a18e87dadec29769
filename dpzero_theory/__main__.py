"""Lists the commands of this package: `python -m dpzero_theory`."""

import sys

# What each command does, by the name of the module that runs it
_COMMANDS = {
    "privacy": "noise, epsilon, delta, steps, batch or n of a private run, from the other five",
    "privacy.checker": "check a privacy certificate by means that share nothing with the accountant",
    "params": "what a theorem says to set for n, epsilon, delta and a problem, and what it then promises",
    "curvature": "measure a model: the numbers of its loss that `params` asks for",
    "optim.verify": "what the folder of a private run proves, without its data",
    "audit": "test whether a training loop does what it claims",
}


def main() -> int:
    """Print the name of each command of this package with a line about what it does, and return the exit status 0."""
    print("python -m dpzero_theory.NAME --help says more of each NAME:")
    for name, purpose in _COMMANDS.items():
        print(f"  {name:16} {purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
