"""The only place that speaks SQL: tables, the verbs that move a job, the passes' queries, the queue's rows.

Every verb is one guarded statement; a settlement is one transaction. Nothing here knows of providers or actors.
"""
