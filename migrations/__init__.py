"""The schema's history. Written in SQL, run by Alembic; forward only: expand, deploy, contract."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

VERSION_SCHEMA = "callkeeper"
# DDL that waits for a lock makes everybody else wait behind it, so it gives up soon and comes back.
LOCK_TIMEOUT = "2s"
STATEMENT_TIMEOUT = "60s"
# A CONCURRENTLY step holds nobody up. It may wait long for old snapshots; giving up leaves an invalid index behind.
PATIENT_TIMEOUT = "6h"


def run_file(op: Operations, revision_file: str) -> None:
    """Run the .sql file beside a revision, verbatim: no parameter syntax is looked for in it."""
    text = Path(revision_file).with_suffix(".sql").read_text(encoding="utf-8")
    run_verbatim(op.get_context(), text)


def run_verbatim(context: MigrationContext, text: str) -> None:
    """Run SQL, or write it down when rendering, without reading `:name` or `%` in it as parameters."""
    if context.as_sql:
        context.impl.static_output(text.strip().removesuffix(";") + ";")
    else:
        _online(context).execution_options(no_parameters=True).exec_driver_sql(text)


def create_index_concurrently(op: Operations, name: str, ddl: str) -> None:
    """Build an index without holding up writers; may be run again after any failure.

    `name` is schema-qualified; `ddl` the one CREATE [UNIQUE] INDEX CONCURRENTLY statement, without IF NOT EXISTS, which
    would keep a broken leftover. What the step did before this commits first, so give an index a revision of its own.
    """
    context = op.get_context()
    with context.autocommit_block():
        if context.as_sql:
            run_verbatim(context, ddl)
            return
        with _patience(context):
            leftover = _validity(context, name)
            if leftover is False:
                run_verbatim(context, f"drop index concurrently {name}")
            if leftover is not True:
                run_verbatim(context, ddl)


def set_timeouts(context: MigrationContext, *, lock: str, statement: str) -> None:
    run_verbatim(context, f"set lock_timeout = '{lock}'; set statement_timeout = '{statement}'")


@contextmanager
def _patience(context: MigrationContext) -> Iterator[None]:
    set_timeouts(context, lock=PATIENT_TIMEOUT, statement=PATIENT_TIMEOUT)
    try:
        yield
    finally:
        set_timeouts(context, lock=LOCK_TIMEOUT, statement=STATEMENT_TIMEOUT)


def _validity(context: MigrationContext, name: str) -> bool | None:
    """True: built and usable. False: left over by a build that failed. None: there is no such index."""
    query = sa.text("select indisvalid and indisready from pg_index where indexrelid = to_regclass(:name)")
    return _online(context).execute(query, {"name": name}).scalar()


def _online(context: MigrationContext) -> sa.Connection:
    if context.connection is None:
        raise RuntimeError("this step needs a database: it cannot be rendered")
    return context.connection
