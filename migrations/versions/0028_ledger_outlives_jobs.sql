-- The hours count what was spent, whoever deletes the job that it was spent on.
-- squawk-ignore ban-drop-constraint
alter table callkeeper.call_ledger drop constraint call_ledger_job;
