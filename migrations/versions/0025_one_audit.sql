-- Added to the view as it stands, whatever else it states by now.
do $$
begin
  execute 'create or replace view callkeeper_audit.violations as '
    || rtrim(pg_get_viewdef('callkeeper_audit.violations'::regclass), ' ;')
    || ' union all select 15 as invariant, null::uuid as job_id, ''run '' || run_id || '': '' || what as what'
    || ' from callkeeper_audit.run_violations';
end
$$;
