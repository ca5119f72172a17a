"""Where providers call back: raw bytes verified, stored, and only then thanked for."""

from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from actors.callbacks import MAX_BODY, receive
from web.bodies import json_answer, read_body
from web.desk import Desk
from web.models import Kept


async def take_in(desk: Desk, request: Request) -> Response:
    """200 once it is committed. Without it the provider comes again, and the same delivery is kept once."""
    body = await read_body(request, limit=MAX_BODY)
    verb = partial(
        receive,
        options=desk.options,
        kind=request.path_params["kind"],
        token=request.path_params["token"],
        headers=dict(request.headers),
        body=body,
        # Only compared with the time in a provider's signature: the world's clock, not the database's.
        now=datetime.now(UTC),
    )
    return json_answer(Kept(kept=await desk.transact(verb)))
