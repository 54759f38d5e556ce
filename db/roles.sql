-- Three roles for a shared PostgreSQL, each with no more than it needs. Run it as the database's owner, after
-- `campaign db upgrade` and again after each upgrade, then grant a role to each login:
--
--     psql "$DATABASE" -f roles.sql
--     GRANT campaign_ingest TO cluster_jobs;
--
-- campaign_owner   login node: records and decides (submit, reconcile, cancel, retry)
-- campaign_ingest  compute node: adds what its attempt measured, never a run or a decision
-- campaign_read    dashboards and reports
--
-- `campaign db upgrade` needs the owner of the tables.

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['campaign_owner', 'campaign_ingest', 'campaign_read'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA public TO campaign_owner, campaign_ingest, campaign_read;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO campaign_owner, campaign_ingest, campaign_read;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO campaign_owner, campaign_ingest;

GRANT INSERT, UPDATE ON campaign, run, attempt, checkpoint, event, gpu, gpu_sample, lease, memory_observation,
    metric_extra, node_spool, run_latest, step_metric TO campaign_owner;
GRANT DELETE ON attempt, event TO campaign_owner; -- of a submission that surely did not happen
GRANT DELETE ON campaign, run, checkpoint, gpu, gpu_sample, memory_observation, metric_extra, node_spool, run_latest,
    step_metric TO campaign_owner; -- of a campaign that `campaign rm` removes

GRANT INSERT ON event, checkpoint, gpu, gpu_sample, metric_extra TO campaign_ingest;
GRANT INSERT, UPDATE ON memory_observation, node_spool, run_latest, step_metric TO campaign_ingest;
GRANT UPDATE (target_step) ON run TO campaign_ingest; -- of a run of so many epochs, which only its script can count
GRANT UPDATE (spool_offset, start_step, last_step, heartbeat_s, gpu_seconds) ON attempt TO campaign_ingest;
