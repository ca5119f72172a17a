-- A burst is small beside all that ended long ago, and most plans are about the burst: the sample is taken anew after
-- so many changes, however large the table has grown. It reads at most 30,000 pages.
alter table callkeeper.jobs set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
alter table callkeeper.notices set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
alter table callkeeper.consequences set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
