"""The broker: dramatiq-postgres, with its consumer's claims, acknowledgements and refusals made safe for our use.

Middleware is listed, not inherited: no Retries, no TimeLimit, no Results. Retries are rows, deadlines are columns.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import dramatiq
import psycopg
from dramatiq.broker import MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from dramatiq_postgres import PostgresBroker
from dramatiq_postgres.broker import Notifier, PostgresConsumer
from dramatiq_postgres.utils import make_pool, raise_connection_error, tidy4json, transaction
from psycopg.types.json import Json

from actors.settings import settings
from store import queue
from store.engine import libpq_url

log = logging.getLogger("callkeeper.queue")

UNKNOWN_ACTOR_DELAY = timedelta(seconds=10)
HAND_BACK_DELAY = timedelta(seconds=2)
_STALE_SECONDS = 1.0


class Broker(PostgresBroker):
    """Opens nothing until it is used, so that an app may import the actors without a database."""

    def __init__(self) -> None:
        self._lazy_pool: Any = None
        super().__init__(
            pool=self,  # replaced by the property below; only says: do not make one now
            results=False,
            listen=False,
            middleware=[Actors()],
            heartbeat_interval=5.0,
            heartbeat_ttl=20.0,
            maintenance_interval=10.0,
        )
        self._owns_pool = True
        self.draining = False

    @property
    def pool(self) -> Any:
        if self._lazy_pool is None:
            self._lazy_pool = make_pool(libpq_url(settings().require_database_url()))
        return self._lazy_pool

    @pool.setter
    def pool(self, _value: object) -> None:
        self._lazy_pool = None

    def listen_for_messages(self) -> None:
        self.notifier = Notifier(self.pool)

    def close(self) -> None:
        if self._lazy_pool is not None:
            super().close()

    def declare_queue(self, queue_name: str) -> None:
        """Without the delay queue beside it: a delay is a row's `available_at`, never a message held in memory."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = True
            self.emit_after("declare_queue", queue_name)

    def enqueue(  # type: ignore[override]  # theirs is wrapped in retries that block the caller for minutes
        self, message: Message[Any], *, delay: int | None = None
    ) -> Message[Any]:
        """Send from actor code (`send`, periodiq). A scheduled tick is sent once, however many schedulers send it."""
        scheduled = message.options.get("scheduled_at")
        values = {
            "message_id": UUID(message.message_id),
            "queue": message.queue_name,
            "message": Json(tidy4json(message)),
            "schedule": message.actor_name,
            "delay": timedelta(milliseconds=delay or 0),
        }
        with transaction(self.pool) as cursor:
            cursor.execute(queue.SEND if scheduled is None else queue.SEND_TICK, values)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> "Consumer":
        return Consumer(broker=self, queue_name=queue_name, prefetch=prefetch, timeout=timeout)


class Consumer(PostgresConsumer):
    """One queue's consumer: claims and acknowledges in batches, and loses no message it cannot use."""

    broker: Broker

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._acked: deque[UUID] = deque()
        self._handed_back: deque[UUID] = deque()
        self._rejected: deque[UUID] = deque()
        self._fresh = True
        self._worker = UUID(self.broker.worker_id)
        # Dramatiq asks for two messages a thread. One goes to the threads, one stays here, where it can be taken back.
        self.threads = max(1, self.prefetch // 2)
        self.spare = self.prefetch - self.threads
        self.claimed_at = 0.0

    @raise_connection_error
    def __next__(self) -> MessageProxy | None:
        # Cleared before looking: what arrives while we look wakes the next round instead of being forgotten.
        self.wakeup.clear()
        connection = self.get_consume_conn()
        self.broker.maybe_heartbeat(connection)
        self.broker.maybe_maintenance(connection)
        if self._fresh:
            # A connection broke before: what the last consumer held, or claimed without hearing of it, is nobody's now.
            self._execute(queue.HAND_BACK_ALL, {"queue": self.queue_name, "worker": self._worker})
            self._fresh = False
        if len(self._acked) >= self.threads or not self.buffer:
            self._flush()
        room = self.threads - len(self.in_processing)
        if self.broker.draining or room <= 0:
            self._send_back_stale()
        elif not self.buffer:
            self.claim(room + self.spare)
        if self.buffer and room > 0 and not self.broker.draining:
            message = self.buffer.pop(0)
            self.in_processing.add(message.message_id)
            return MessageProxy(message)
        self.wakeup.wait(min(self.timeout_s, self.broker.poll_interval))
        return None

    def _send_back_stale(self) -> None:
        """What no thread took for a while may be what another process has a thread for."""
        if self.buffer and time.monotonic() - self.claimed_at > _STALE_SECONDS:
            stale, self.buffer = self.buffer, []
            self.requeue(stale)

    @raise_connection_error
    def claim(self, limit: int) -> None:
        self.claimed_at = time.monotonic()
        values = {"queue": self.queue_name, "limit": limit, "worker": self._worker}
        rows = sorted(self._execute(queue.CLAIM, values).fetchall(), key=lambda row: (row[2], row[3]))
        unreadable, unknown = [], []
        for message_id, body, _available_at, _position in rows:
            message = _decoded(body)
            if message is None:
                unreadable.append(message_id)
            elif message.actor_name not in self.broker.actors:
                log.warning("queue.unknown_actor actor=%s message_id=%s", message.actor_name, message_id)
                unknown.append(message_id)
            else:
                self.buffer.append(message)
        if unreadable:
            log.error("queue.unreadable_messages count=%s", len(unreadable))
            self._run(queue.REJECT, unreadable)
        if unknown:
            self._run(queue.HAND_BACK, unknown, delay=UNKNOWN_ACTOR_DELAY)

    def ack(self, message: MessageProxy) -> None:
        """Noted here, written by the consumer's thread in batches: a lost ack only wakes somebody once more."""
        self._noted(message, self._handed_back if getattr(message, "hand_back", False) else self._acked)

    def nack(self, message: MessageProxy) -> None:
        self._noted(message, self._rejected)

    def _noted(self, message: MessageProxy, kept: "deque[UUID]") -> None:
        kept.append(UUID(message.message_id))
        self.in_processing.discard(message.message_id)
        self.wakeup.set()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        ids = [UUID(message.message_id) for message in messages]
        if ids:
            self._run(queue.HAND_BACK, ids, delay=timedelta(0))

    def close(self) -> None:
        """Nothing claimed stays behind: what was not started goes back, at once and to anybody."""
        unstarted, self.buffer = self.buffer, []
        try:
            self._flush()
            self.requeue(unstarted)
        except Exception:
            log.warning("queue.hand_back_failed queue=%s; the rest is reaped later", self.queue_name, exc_info=True)
        super().close()

    def _flush(self) -> None:
        self._write(queue.ACK, self._acked)
        self._write(queue.HAND_BACK, self._handed_back, delay=HAND_BACK_DELAY)
        self._write(queue.REJECT, self._rejected)

    def _write(self, statement: LiteralString, kept: "deque[UUID]", **values: Any) -> None:
        """Worker threads add to `kept` meanwhile, so it is emptied from its front and never replaced."""
        messages = [kept.popleft() for _ in range(len(kept))]
        if not messages:
            return
        try:
            self._run(statement, messages, **values)
        except BaseException:
            kept.extend(messages)
            raise

    @raise_connection_error
    def _run(self, statement: LiteralString, message_ids: list[UUID], **values: Any) -> None:
        self._execute(statement, {"messages": message_ids, "worker": self._worker, **values})

    def _execute(self, statement: LiteralString, values: dict[str, Any]) -> "psycopg.Cursor[Any]":
        """One statement, one round trip: the connection is in autocommit, and every statement is whole by itself."""
        connection: psycopg.Connection[Any] = self.get_consume_conn()
        if not connection.autocommit:
            connection.autocommit = True
        return connection.execute(statement, values)


def _decoded(body: str) -> Message[Any] | None:
    try:
        message: Message[Any] = Message.decode(body.encode())
        return message if isinstance(message.actor_name, str) and isinstance(message.args, tuple) else None
    except Exception:  # noqa: BLE001  # whatever is in the row, the queue goes on
        return None


class Actors(Middleware):
    """The process's life around Dramatiq's, and what becomes of a message whose actor raised."""

    @property
    def actor_options(self) -> set[str]:
        return {"periodic", "throws"}

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        from actors.process import boot

        boot(broker, worker)

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:  # noqa: ARG002
        from actors.process import drain

        drain(broker)

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:  # noqa: ARG002
        from actors.process import shut_down

        shut_down()

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: MessageProxy,
        *,
        result: Any = None,  # noqa: ARG002
        exception: BaseException | None = None,
    ) -> None:
        """The job's row says what is left to do; a message that found nobody able to look goes back to the queue.

        One that fits no actor never will: it is put aside, and the sweep wakes its job, if it has one.
        """
        actor = broker.get_actor(message.actor_name)
        if isinstance(exception, TypeError | ValueError):
            message.fail()
        elif exception is not None and "periodic" not in actor.options:
            message.hand_back = True  # type: ignore[attr-defined]  # read by Consumer.ack


broker = Broker()
dramatiq.set_broker(broker)
# No actor lives there: jobs are sent to it by their type, and results follow their job.
broker.declare_queue("large")
