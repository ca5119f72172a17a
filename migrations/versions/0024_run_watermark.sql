-- Whether the files of the result step carry a mark: decided at submit, also for a step that another one adds.
alter table callkeeper.runs add column watermark boolean default false not null;
