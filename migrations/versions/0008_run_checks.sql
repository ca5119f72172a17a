alter table callkeeper.jobs validate constraint jobs_run;
alter table callkeeper.jobs validate constraint jobs_step_is_whole;
alter table callkeeper.jobs validate constraint jobs_blocked_never_started;
alter table callkeeper.jobs validate constraint jobs_recreates_within_budget;
alter table callkeeper.notices validate constraint notices_run;
alter table callkeeper.notices validate constraint notices_of_one;
alter table callkeeper.notices validate constraint notices_channel_known;
