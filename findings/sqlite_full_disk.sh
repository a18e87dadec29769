#!/usr/bin/env bash
# Version: pysqlite3-binary 0.5.4 (SQLite 3.46.1); the same with Python's sqlite3 on SQLite 3.40.1
# Source: https://www.sqlite.org/lang_transaction.html (section 3, errors that roll a transaction back) and https://www.sqlite.org/rescode.html#full
# Behaviour: a statement that finds the disk full ends the whole transaction, where one that breaks a constraint ends itself alone. Without a
#   transaction the statements after it, which need little room, are committed one by one, and the COMMIT at the end says that there is none.
# Output: BEGIN, a run's row, payments until the disk is full (here a limit on the file's pages), the release's row, COMMIT: the run's row and
#   all payments are gone, the release's row is in the file, and COMMIT raises "cannot commit - no transaction is active". With a payment that
#   is there already in place of the full disk, COMMIT keeps all the others.
# Matters: a ledger that writes payment and release in one transaction, and catches the error of one row to try it again or to log it, keeps a
#   release that was never paid. Let every error leave the block, or look at in_transaction before each statement.
# Guessed: all or none, as the rows are in one transaction; seen: the rows before the error are gone, those after it stay.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib pysqlite3-binary==0.5.4
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
from pysqlite3 import dbapi2 as sqlite


def kept(name, twice):
    """The rows of the file after a transaction in which one row fails. twice: the payment is there already, or the disk is full."""
    con = sqlite.connect(name, isolation_level=None)
    con.execute("pragma journal_mode = wal")
    con.execute("create table rows (name text primary key, noise blob)")
    con.execute("pragma max_page_count = 12")
    con.execute("begin immediate")
    con.execute("insert into rows values ('run', null)")
    try:
        for step in range(100):
            name_of = "payment 3" if twice and step == 5 else f"payment {step}"
            con.execute("insert into rows values (?, ?)", (name_of, b"x" * 500))
    except sqlite.Error as error:
        print("row:", error, "- in a transaction:", con.in_transaction)
    con.execute("insert into rows values ('release', null)")
    try:
        con.execute("commit")
    except sqlite.Error as error:
        print("commit:", error)
    con.close()
    return [row for (row,) in sqlite.connect(name).execute("select name from rows order by rowid")]


print(sqlite.sqlite_version)
assert kept("twice", True) == ["run", *(f"payment {step}" for step in range(5)), "release"]
found = kept("full", False)
print(found)
assert found == ["release"]
PY
