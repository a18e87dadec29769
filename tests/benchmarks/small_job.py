"""A small job for the tests of the job runner: it writes rows, and continues after an interruption.

python -m tests.benchmarks.small_job KIND --out DIR

KIND is `fails` (it ends with status 3 and writes nothing), `hangs` (it waits a minute, with a child process that
waits, too), `slow` (it writes four rows a second), or any other word (it writes a row every 30 milliseconds).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROWS = 12


def main(kind: str, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    if kind == "fails":
        print("it cannot be done")
        return 3
    if kind == "hangs":
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        (out / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(60)
    path = out / "rows"
    for number in range(ROWS):
        if number >= (path.stat().st_size // 8 if path.exists() else 0):
            with path.open("ab", buffering=0) as file:
                file.write(b"row %3d\n" % number)
            print(f"row {number}", flush=True)
            time.sleep(0.25 if kind == "slow" else 0.03)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[3])))
