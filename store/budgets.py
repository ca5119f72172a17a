"""Budgets as operators set them, and what each has used. Changing one takes effect with the next start or submit.

Measures: `concurrency` (calls running or waiting at once), `queued` (jobs not started), `rate` (starts per window),
`spend` (credits reserved and charged per user and window), `weight` (a user's share of a line, 1 without a row).
Scopes: `global`, `kind`, `account` (as vendor/account, over all kinds of a vendor), `user` and `app`, where the name
`*` means each that has no row of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.exc import IntegrityError

from store.errors import BudgetInvalid
from store.guards import statement

SCOPES = {
    "concurrency": ("global", "kind", "account", "user", "app"),
    "queued": ("global", "kind", "user", "app"),
    "rate": ("global", "kind", "account"),
    "spend": ("user",),
    "weight": ("user",),
}
WINDOWED = ("rate", "spend")

# Windows of a length begin at the same moments everywhere; a Monday, so that those of a week do.
WINDOW = "date_bin(b.per, clock_timestamp(), timestamptz '2000-01-03 00:00:00+00')"


def account_of(kind: str, account: str) -> str:
    """`vendor/account` of a job in SQL; what a job has not frozen yet is this deployment's."""
    return f"split_part({kind}, '-', 1) || '/' || coalesce({account}, :accounts ->> {kind}, 'default')"


# The slots a budget `b` has given out; `{subject}` is the user or app that a row named `*` is asked about.
SLOTS_TAKEN = f"""
  (
    select count(*) from callkeeper.slots s
    where b.scope = 'global' or (b.scope = 'kind' and s.provider_kind = b.name)
      or (b.scope = 'account' and {account_of("s.provider_kind", "s.account")} = b.name)
      or (b.scope = 'user' and s.user_id = {{subject}}) or (b.scope = 'app' and s.app = {{subject}})
  )
"""
STARTED_LATELY = "(select count(*) from unnest(b.recent) at where at > clock_timestamp() - b.per)"
# A reservation counts until it is settled, a charge from then on.
SPENT = f"""
  (
    select coalesce(sum(case u.status when 'reserved' then u.reserved_subscription + u.reserved_topup
      else u.committed_subscription + u.committed_topup end), 0)
    from callkeeper.spending p join callkeeper.usage_logs u on u.job_id = p.job_id
    where p.user_id = {{subject}} and p.started_at >= {WINDOW}{{only}}
  )
"""
ACCOUNTS = sa.bindparam("accounts", type_=pg.JSONB)


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit. `used` now; None where the row stands for many users or apps, or for a weight."""

    measure: str
    scope: str
    name: str
    at_most: int
    per: timedelta | None = None
    used: int | None = None
    parked: int = 0
    changed_by: str = ""

    @property
    def target(self) -> str:
        return self.scope if self.scope == "global" else f"{self.scope}:{self.name}"


SET = statement(
    """
    with was as (
      select at_most from callkeeper.budgets where measure = :measure and scope = :scope and name = :name
    ), kept as (
      insert into callkeeper.budgets (measure, scope, name, at_most, per, changed_by)
      values (:measure, :scope, :name, :at_most, :per, :by)
      on conflict (measure, scope, name) do update
      set at_most = excluded.at_most, per = excluded.per, changed_by = excluded.changed_by,
        changed_at = clock_timestamp()
      returning measure, scope, name, at_most, per, changed_by
    )
    insert into callkeeper.budget_changes (measure, scope, name, was, at_most, per, changed_by)
    select measure, scope, name, (select at_most from was), at_most, per, changed_by from kept
    """
).bindparams(
    sa.bindparam("measure", type_=sa.Text),
    sa.bindparam("scope", type_=sa.Text),
    sa.bindparam("name", type_=sa.Text),
    sa.bindparam("at_most", type_=sa.BigInteger),
    sa.bindparam("per", type_=pg.INTERVAL),
    sa.bindparam("by", type_=sa.Text),
)

REMOVE = statement(
    """
    with gone as (
      delete from callkeeper.budgets where measure = :measure and scope = :scope and name = :name
      returning measure, scope, name, at_most
    )
    insert into callkeeper.budget_changes (measure, scope, name, was, changed_by)
    select measure, scope, name, at_most, :by from gone
    returning id
    """
)


def set_budget(
    connection: sa.Connection, measure: str, scope: str, name: str, *, at_most: int, per: timedelta | None, by: str
) -> None:
    """Set a limit, new or known, and note who did. Raises BudgetInvalid naming the field."""
    _check(measure, scope, name, at_most, per)
    binds = {"measure": measure, "scope": scope, "name": name, "at_most": at_most, "per": per, "by": by}
    try:
        connection.execute(SET, binds)
    except IntegrityError as error:
        rule = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
        raise BudgetInvalid(f"budget {measure} {scope}:{name} at most {at_most} breaks the rule {rule}") from error


def _check(measure: str, scope: str, name: str, at_most: int, per: timedelta | None) -> None:
    if measure not in SCOPES:
        raise BudgetInvalid(f"measure {measure!r} is unknown: use one of {', '.join(SCOPES)}")
    if scope not in SCOPES[measure]:
        raise BudgetInvalid(f"scope {scope!r} does not fit {measure}: use one of {', '.join(SCOPES[measure])}")
    if (scope == "global") != (name == ""):
        raise BudgetInvalid(f"name {name!r} does not fit scope {scope}: name whom it limits, and nobody for global")
    if (measure in WINDOWED) != (per is not None):
        raise BudgetInvalid(f"per {per} does not fit {measure}: {' and '.join(WINDOWED)} have one, the others none")
    lowest, highest = {"weight": (1, 1000), "rate": (0, 1000)}.get(measure, (0, 2**62))
    if not lowest <= at_most <= highest:
        raise BudgetInvalid(f"limit {at_most} of {measure} is out of range: {lowest} to {highest}")


def remove_budget(connection: sa.Connection, measure: str, scope: str, name: str, *, by: str) -> bool:
    """Lift a limit, and note who did; what was parked on it gets in line again. False when there was none."""
    binds = {"measure": measure, "scope": scope, "name": name, "by": by}
    return connection.execute(REMOVE, binds).one_or_none() is not None


BUDGETS = statement(
    f"""
    select b.measure, b.scope, b.name, b.at_most, b.per, b.changed_by,
      case when b.name = '*' then null when b.measure = 'concurrency' then {SLOTS_TAKEN.format(subject="b.name")}
        when b.measure = 'rate' then {STARTED_LATELY}
        when b.measure = 'spend' then {SPENT.format(subject="b.name", only="")} end as used,
      (
        select count(*) from callkeeper.jobs j
        where j.status = 'queued' and j.parked_on is not null and split_part(j.parked_on, '/', 1) = b.id::text
      ) as parked
    from callkeeper.budgets b
    order by b.measure, b.scope, b.name
    """
).bindparams(ACCOUNTS)


def budgets(connection: sa.Connection, *, accounts: Mapping[str, str] | None = None) -> list[Budget]:
    """Every limit with what it has given out. `accounts`: account names by kind, where they are not `default`."""
    return [Budget(**row) for row in connection.execute(BUDGETS, {"accounts": accounts or {}}).mappings()]


ANY = sa.text("select exists (select from callkeeper.budgets where measure in ('concurrency', 'rate', 'spend'))")


def any_limit(connection: sa.Connection) -> bool:
    """Whether a start must ask a budget."""
    return bool(connection.execute(ANY).scalar_one())


CHANGES = statement(
    """
    select changed_at, changed_by, measure, scope, name, was, at_most, per
    from callkeeper.budget_changes order by id desc limit :at_most
    """
)


def changes(connection: sa.Connection, *, at_most: int = 50) -> list[Mapping[str, Any]]:
    """Who changed which limit, the latest first."""
    return [dict(row) for row in connection.execute(CHANGES, {"at_most": at_most}).mappings()]
