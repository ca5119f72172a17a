"""The only place that speaks SQL: tables, the verbs that move a job, the passes' queries, the queue's rows.

Every verb is one guarded statement; a settlement is one transaction. Nothing here knows of providers or actors.
"""

import logging

# It greets every process that imports it, with seven lines.
logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
