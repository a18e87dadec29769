"""Lists the invented loops by family.

They were written from the tutorial alone by someone who had not seen the checks.
"""

from benchmarks.zoo.invented import accounting, batches, clipping, noise, shown, sound
from benchmarks.zoo.invented.common import REGISTERED

FAMILIES = {
    module.__name__.rpartition(".")[2]: tuple(REGISTERED[module.__name__])
    for module in (sound, batches, clipping, noise, shown, accounting)
}
LOOPS = {specimen.name: (family, specimen) for family, found in FAMILIES.items() for specimen in found}
"""Each loop's family and how to audit it, by the loop's name."""
