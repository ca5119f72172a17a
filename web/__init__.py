"""The thin web API: submit, status, events, stop, callbacks, the operator's page.

import web
app = web.app()                                  # to serve, or to mount: Mount("/callkeeper", web.app())
"""

from web.app import app, lifespan, routes

__all__ = ["app", "lifespan", "routes"]
