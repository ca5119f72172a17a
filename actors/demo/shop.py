"""The demo app: it sells posters and captions, and keeps its orders in a schema of its own in the same database."""

import random
from dataclasses import dataclass

import sqlalchemy as sa

from actors import grant, submit
from actors.demo import jobs as _job_types  # noqa: F401  # registers them

ACCOUNT = "studio"
GRANTED = 500
POSTERS, CAPTIONS = 28, 12
ORDERS = POSTERS + CAPTIONS

_TABLES = """
create schema shop;
create table shop.orders (
  number int primary key,
  item text not null,
  prompt text not null,
  job_id uuid not null unique references callkeeper.jobs (id)
)
"""
_INSERT = sa.text("insert into shop.orders (number, item, prompt, job_id) values (:number, :item, :prompt, :job_id)")
_SUBJECTS = ("a red fox", "a lighthouse", "an old tram", "a paper boat", "two herons", "a night market", "a tin robot")
_STYLES = ("in ink", "as a woodcut", "in soft pastel", "on blue paper", "in the rain", "at dawn", "from above")


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    item: str
    prompt: str


class ChangedTheirMind(Exception):
    """The customer is gone before the transaction ends."""


def open_shop(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(_TABLES))
        grant(connection, ACCOUNT, topup=GRANTED)


def make_orders(seed: int) -> list[Order]:
    """All orders, posters and captions mixed."""
    chance = random.Random(seed)  # noqa: S311  # a demo's prompts
    items = ["poster"] * POSTERS + ["caption"] * CAPTIONS
    chance.shuffle(items)
    return [
        Order(number, item, f"{chance.choice(_SUBJECTS)} {chance.choice(_STYLES)}")
        for number, item in enumerate(items, start=1)
    ]


def place(engine: sa.Engine, order: Order, *, change_mind: bool = False) -> None:
    """One business transaction: the paid call and the order's row exist together or not at all."""
    with engine.begin() as connection:
        submitted = submit(
            connection,
            order.item,
            {"number": order.number, "prompt": order.prompt},
            user_id=ACCOUNT,
            idempotency_key=f"order-{order.number}",
        )
        connection.execute(
            _INSERT,
            {"number": order.number, "item": order.item, "prompt": order.prompt, "job_id": submitted.job_id},
        )
        if change_mind:
            raise ChangedTheirMind


_LEFTOVERS = sa.text(
    """
    select
      (select count(*) from shop.orders where number = :number)
      + (select count(*) from callkeeper.jobs where idempotency_key = :key)
      + (select count(*) from callkeeper.usage_logs)
      + (select count(*) from dramatiq.queue where queue_name in ('calls', 'large'))
      + (select reserved_subscription + reserved_topup from callkeeper.accounts where id = :account)
    """
)


def leftovers(engine: sa.Engine, order: Order) -> int:
    """What a rolled-back first order left behind: its row, jobs, reservations, messages, credits. It must be 0."""
    binds = {"number": order.number, "key": f"order-{order.number}", "account": ACCOUNT}
    with engine.connect() as connection:
        return int(connection.execute(_LEFTOVERS, binds).scalar_one())
