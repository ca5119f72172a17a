alter table callkeeper.accounts validate constraint accounts_visibility_known;
alter table callkeeper.jobs validate constraint jobs_visibility_known;
alter table callkeeper.jobs validate constraint jobs_looks_counted;
