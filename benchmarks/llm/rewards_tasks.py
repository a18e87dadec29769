"""The 0-1 error as what is trained, beside cross-entropy: TREC and PubMedQA.  python -m benchmarks llm.rewards_tasks"""

import sys

from benchmarks.llm.rewards import OF_TASKS

EXPERIMENT = OF_TASKS

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
