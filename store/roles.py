"""Database roles for apps whose users reach the database themselves, and the row-level policies that keep them apart.

`callkeeper_service` may do everything the workers do. `callkeeper_user` may read its own runs, jobs, events and files,
by column; calls, receipts, requests, accounts, the ledger, flags and the queue are out of its reach entirely. Whose
rows are "its own" is said by the session: `set callkeeper.user_id = '...'`, by the app after it has authenticated.
"""

import sqlalchemy as sa

ROLES = ("callkeeper_service", "callkeeper_user")

# What a user may see, by table and column. Nothing of providers, calls, prices, leases or machines is among it.
VISIBLE = {
    "runs": (
        "id", "run_type", "user_id", "status", "quality", "progress", "failure_code", "created_at", "finished_at",
    ),
    "jobs": (
        "id", "user_id", "job_type", "status", "progress", "result", "error_code", "run_id", "step", "created_at",
        "finished_at",
    ),
    "job_events": ("job_id", "seq", "kind", "created_at"),
    "assets": ("job_id", "position", "object_key", "content_type", "size_bytes", "sha256", "created_at"),
    "run_warnings": ("job_id", "run_id", "code", "stage", "severity", "customer_visible", "quality", "details"),
}  # fmt: skip

_ME = "nullif(current_setting('callkeeper.user_id', true), '')"
_MINE = {
    "runs": f"user_id = {_ME}",
    "jobs": f"user_id = {_ME}",
    "job_events": f"exists (select from callkeeper.jobs j where j.id = job_id and j.user_id = {_ME})",
    "assets": f"exists (select from callkeeper.jobs j where j.id = job_id and j.user_id = {_ME})",
    "run_warnings": (
        f"customer_visible and exists (select from callkeeper.runs r where r.id = run_id and r.user_id = {_ME})"
    ),
}


def _script() -> str:
    grants = "\n".join(
        f"grant select ({', '.join(columns)}) on callkeeper.{table} to callkeeper_user;"
        for table, columns in VISIBLE.items()
    )
    policies = "\n".join(
        f"drop policy if exists own_rows on callkeeper.{table};\n"
        f"create policy own_rows on callkeeper.{table} for select to callkeeper_user using ({mine});"
        for table, mine in _MINE.items()
    )
    return f"""
do $$
declare
  name text;
begin
  foreach name in array array['callkeeper_service', 'callkeeper_user'] loop
    if not exists (select from pg_roles where rolname = name) then
      execute format('create role %I nologin', name);
    end if;
  end loop;
  -- Every table of ours, those of later revisions when this is run again: closed to whoever has no policy.
  for name in
    select c.relname from pg_class c where c.relnamespace = 'callkeeper'::regnamespace and c.relkind = 'r'
  loop
    execute format('alter table callkeeper.%I enable row level security', name);
    execute format('drop policy if exists service on callkeeper.%I', name);
    execute format('create policy service on callkeeper.%I to callkeeper_service using (true) with check (true)', name);
    execute format('revoke all on callkeeper.%I from callkeeper_user, public', name);
  end loop;
end
$$;
grant usage on schema callkeeper, dramatiq, callkeeper_audit to callkeeper_service;
grant select, insert, update, delete on all tables in schema callkeeper, dramatiq to callkeeper_service;
grant usage on all sequences in schema callkeeper, dramatiq to callkeeper_service;
grant select on all tables in schema callkeeper_audit to callkeeper_service;
revoke all on schema dramatiq, callkeeper_audit from callkeeper_user, public;
revoke all on all tables in schema dramatiq, callkeeper_audit from callkeeper_user, public;
grant usage on schema callkeeper to callkeeper_user;
{grants}
{policies}
""".strip()  # noqa: S608  # from constants above


SCRIPT = _script()


def create(connection: sa.Connection) -> None:
    """Create the roles, grants and policies, or bring them up to date. The tables' owner is not bound by them."""
    connection.execution_options(no_parameters=True).exec_driver_sql(SCRIPT)
