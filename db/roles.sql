-- Three roles for a shared PostgreSQL, each with no more than it needs. Run it as the database's owner, after
-- `campaign db upgrade` and again after each upgrade, then grant a role to each login:
--
--     psql -1 -v ON_ERROR_STOP=1 "$DATABASE" -f roles.sql
--     GRANT campaign_ingest TO cluster_jobs;
--
-- campaign_owner   login node: records and decides (submit, reconcile, cancel, retry)
-- campaign_ingest  compute node: adds what attempts measure that have not ended, and changes nothing that is known
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

SET client_min_messages = warning; -- DROP ... IF EXISTS need not say what a first run does not find

-- What an earlier version gave.
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM campaign_ingest;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM campaign_ingest;

GRANT USAGE ON SCHEMA public TO campaign_owner, campaign_ingest, campaign_read;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO campaign_owner, campaign_read;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO campaign_owner;

GRANT INSERT, UPDATE ON campaign, run, attempt, checkpoint, event, gpu, gpu_sample, lease, memory_observation,
    metric_extra, node_spool, run_latest, step_metric TO campaign_owner;
GRANT DELETE ON attempt, event TO campaign_owner; -- of a submission that surely did not happen
GRANT DELETE ON campaign, run, checkpoint, gpu, gpu_sample, memory_observation, metric_extra, node_spool, run_latest,
    step_metric TO campaign_owner; -- of a campaign that `campaign rm` removes

-- campaign_ingest: the columns that an agent reads and writes, all others are out of its reach.
GRANT SELECT ON alembic_version, attempt, checkpoint, event, gpu, gpu_sample, memory_observation, metric_extra,
    node_spool, run_latest, step_metric TO campaign_ingest;
GRANT SELECT (id, campaign_id, config_hash, target_step) ON run TO campaign_ingest;
GRANT INSERT ON checkpoint, gpu, gpu_sample, memory_observation, metric_extra, node_spool, run_latest, step_metric
    TO campaign_ingest;
GRANT INSERT (campaign_id, run_id, attempt_id, ts_s, kind, message, data) ON event TO campaign_ingest;
GRANT USAGE ON SEQUENCE event_id_seq TO campaign_ingest;
GRANT UPDATE (spool_offset, start_step, last_step, heartbeat_s) ON attempt TO campaign_ingest;
GRANT UPDATE (spool_offset) ON node_spool TO campaign_ingest;
GRANT UPDATE (target_step) ON run TO campaign_ingest; -- of a run of so many epochs, which only its script can count
GRANT UPDATE (after_init_gb, per_sample_gb, peak_allocated_gb, peak_reserved_gb, usable_gb) ON memory_observation
    TO campaign_ingest;
GRANT UPDATE (ts_s, loss, eval_loss, lr, grad_norm, step_time_s, tokens_per_s, mem_allocated_gb, mem_reserved_gb,
    gpu_util_pct, power_w, mfu, nonfinite) ON step_metric TO campaign_ingest; -- what a later line of a step adds
GRANT UPDATE (attempt_id, generation, step, ts_s, loss, eval_loss, lr, grad_norm, step_time_s, tokens_per_s,
    mem_allocated_gb, mem_reserved_gb, gpu_util_pct, power_w, mfu, nonfinite) ON run_latest TO campaign_ingest;

-- Which rows it may write: those of attempts that have not ended. Whoever is in campaign_owner too is free of that, and
-- for all others every row stays as open as the grants leave it.
DO $$
DECLARE
    live constant text := $sql$ EXISTS (SELECT FROM attempt a
        WHERE a.id = %1$s.attempt_id AND a.state IN ('intent', 'queued', 'running') %2$s) $sql$;
    free constant text := $sql$ (SELECT pg_has_role(current_user, 'campaign_owner', 'USAGE')) $sql$;
    rules constant text[][] := ARRAY[
        -- table, what must hold of the attempt besides, and of the row
        ['step_metric', '', ''],
        ['metric_extra', '', ''],
        ['gpu', '', ''],
        ['gpu_sample', '', ''],
        ['node_spool', '', ''],
        ['memory_observation', '', 'AND NOT oom'], -- an out-of-memory is a verdict
        ['run_latest', 'AND a.run_id = run_latest.run_id AND a.generation = run_latest.generation', ''],
        ['checkpoint', 'AND a.run_id = checkpoint.run_id AND a.generation = checkpoint.generation', ''],
        ['event', 'AND a.run_id = event.run_id
                   AND EXISTS (SELECT FROM run r WHERE r.id = a.run_id AND r.campaign_id = event.campaign_id)',
            $sql$ AND kind ~ '^((script|gpu|forward|spool)[.]|(gpus-[0-9]+|forward)[.]jsonl[.]truncated$)' $sql$]
    ];
    rule text[];
    allowed text;
BEGIN
    FOREACH rule SLICE 1 IN ARRAY rules LOOP
        allowed := free || 'OR' || format(live, rule[1], rule[2]) || rule[3];
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', rule[1]);
        EXECUTE format('DROP POLICY IF EXISTS campaign_everyone ON %I', rule[1]);
        EXECUTE format('DROP POLICY IF EXISTS campaign_ingest_adds ON %I', rule[1]);
        EXECUTE format('DROP POLICY IF EXISTS campaign_ingest_changes ON %I', rule[1]);
        EXECUTE format('CREATE POLICY campaign_everyone ON %I USING (true) WITH CHECK (true)', rule[1]);
        EXECUTE format('CREATE POLICY campaign_ingest_adds ON %I AS RESTRICTIVE FOR INSERT TO campaign_ingest '
            'WITH CHECK (%s)', rule[1], allowed);
        EXECUTE format('CREATE POLICY campaign_ingest_changes ON %I AS RESTRICTIVE FOR UPDATE TO campaign_ingest '
            'USING (true) WITH CHECK (%s)', rule[1], allowed);
    END LOOP;
END $$;

-- What an update may change, which no policy can say: it would have to compare the row with what it was.
CREATE OR REPLACE FUNCTION public.campaign_ingest_refuses(why text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = 'campaign_ingest only adds measurements: ' || why;
END $$;

CREATE OR REPLACE FUNCTION public.campaign_ingest_attempt() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.state NOT IN ('intent', 'queued', 'running') THEN
        PERFORM public.campaign_ingest_refuses('attempt ' || OLD.id || ' has ended');
    ELSIF NEW.spool_offset < OLD.spool_offset OR coalesce(NEW.last_step, -1) < coalesce(OLD.last_step, -1)
        OR OLD.start_step IS NOT NULL AND NEW.start_step IS DISTINCT FROM OLD.start_step THEN
        PERFORM public.campaign_ingest_refuses('its offset and steps of attempt ' || OLD.id || ' only grow');
    ELSIF NEW.heartbeat_s IS DISTINCT FROM OLD.heartbeat_s
        AND (NEW.heartbeat_s IS NULL OR NEW.heartbeat_s < OLD.heartbeat_s
             OR NEW.heartbeat_s > extract(epoch FROM clock_timestamp())) THEN
        PERFORM public.campaign_ingest_refuses('a heartbeat is of now');
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION public.campaign_ingest_run() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.target_step IS NOT NULL OR coalesce(NEW.target_step, 0) < 1 OR NOT EXISTS (
        SELECT FROM public.attempt a WHERE a.run_id = OLD.id AND a.state IN ('intent', 'queued', 'running')
    ) THEN
        PERFORM public.campaign_ingest_refuses('a target is set once, while an attempt of the run is active');
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION public.campaign_ingest_node_spool() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.spool_offset < OLD.spool_offset THEN
        PERFORM public.campaign_ingest_refuses('an offset only grows');
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION public.campaign_ingest_run_latest() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.generation, NEW.step) < (OLD.generation, OLD.step) THEN
        PERFORM public.campaign_ingest_refuses('the newest step of a run only grows');
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION public.campaign_ingest_step_metric() RETURNS trigger -- arguments: names of columns, by bit
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old_row constant jsonb := to_jsonb(OLD);
    new_row constant jsonb := to_jsonb(NEW);
    flag integer := 1;
    name text;
BEGIN
    FOREACH name IN ARRAY TG_ARGV LOOP
        IF (old_row ->> name IS NOT NULL OR OLD.nonfinite & flag <> 0)
            AND (new_row -> name <> old_row -> name OR (NEW.nonfinite # OLD.nonfinite) & flag <> 0) THEN
            PERFORM public.campaign_ingest_refuses(name || ' of a step is known');
        END IF;
        flag := flag << 1;
    END LOOP;
    IF OLD.ts_s <> NEW.ts_s OR OLD.ts_s IS NOT NULL AND NEW.ts_s IS NULL THEN
        PERFORM public.campaign_ingest_refuses('the time of a step is known');
    END IF;
    RETURN NEW;
END $$;

DO $$
DECLARE
    name text;
    columns text;
BEGIN
    FOREACH name IN ARRAY ARRAY['attempt', 'run', 'node_spool', 'run_latest', 'step_metric'] LOOP
        -- in the order of the bits of `nonfinite`
        columns := CASE name WHEN 'step_metric' THEN 'loss, eval_loss, lr, grad_norm, step_time_s, tokens_per_s, '
            'mem_allocated_gb, mem_reserved_gb, gpu_util_pct, power_w, mfu' ELSE '' END;
        EXECUTE format('DROP TRIGGER IF EXISTS campaign_ingest ON %I', name);
        EXECUTE format('CREATE TRIGGER campaign_ingest BEFORE UPDATE ON %I FOR EACH ROW '
            'WHEN (pg_has_role(current_user, ''campaign_ingest'', ''USAGE'') '
            'AND NOT pg_has_role(current_user, ''campaign_owner'', ''USAGE'')) '
            'EXECUTE FUNCTION public.campaign_ingest_%s(%s)', name, name, columns);
    END LOOP;
END $$;

RESET client_min_messages;
