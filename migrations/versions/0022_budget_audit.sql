-- What was started since a limit was set stays within it. Added to the view as it stands, whatever else it states by now.
create view callkeeper_audit.budget_violations as
select 13 as invariant, null::uuid as job_id,
  format('%s slots of %s%s are taken since it was limited to %s', count(*), b.scope,
    case b.scope when 'global' then '' else ' ' || case b.name when '*' then min(coalesce(s.user_id, s.app)) else b.name end end,
    b.at_most) as what
from callkeeper.budgets b join callkeeper.slots s on s.started_at > b.changed_at + interval '1 second' and (
  b.scope = 'global' or (b.scope = 'kind' and s.provider_kind = b.name)
  or (b.scope = 'account' and split_part(s.provider_kind, '-', 1) || '/' || coalesce(s.account, 'default') = b.name)
  or (b.scope = 'user' and (s.user_id = b.name or (b.name = '*' and not exists (
    select from callkeeper.budgets own where own.measure = b.measure and own.scope = 'user' and own.name = s.user_id
  ))))
  or (b.scope = 'app' and (s.app = b.name or (b.name = '*' and not exists (
    select from callkeeper.budgets own where own.measure = b.measure and own.scope = 'app' and own.name = s.app
  ))))
)
where b.measure = 'concurrency'
group by b.id, case b.name when '*' then case b.scope when 'user' then s.user_id else s.app end end
having count(*) > b.at_most
union all
select 13, null, format('user %s spent %s of %s in this window', p.user_id, sum(u.spent), b.at_most)
from callkeeper.budgets b
join callkeeper.spending p
  on p.started_at > b.changed_at
  and p.started_at >= date_bin(b.per, clock_timestamp(), timestamptz '2000-01-03 00:00:00+00')
  and (p.user_id = b.name or (b.name = '*' and not exists (
    select from callkeeper.budgets own where own.measure = b.measure and own.scope = 'user' and own.name = p.user_id
  )))
join (
  select job_id, case status when 'reserved' then reserved_subscription + reserved_topup
    else committed_subscription + committed_topup end as spent
  from callkeeper.usage_logs
) u on u.job_id = p.job_id
where b.measure = 'spend'
group by b.id, p.user_id
having sum(u.spent) > b.at_most;

do $$
begin
  execute 'create or replace view callkeeper_audit.violations as '
    || rtrim(pg_get_viewdef('callkeeper_audit.violations'::regclass), ' ;')
    || ' union all select invariant, job_id, what from callkeeper_audit.budget_violations';
end
$$;
