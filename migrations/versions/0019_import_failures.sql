-- A file that stays broken at its provider is fetched anew only so often, whatever time the job has left. What is counted
-- belongs to one call: a new generation begins at zero.
alter table callkeeper.jobs add column import_failures integer default 0 not null;
alter table callkeeper.jobs add constraint jobs_import_failures_are_counted check (import_failures >= 0) not valid;
