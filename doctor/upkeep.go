package doctor

// The fold is due only while the counter log has rows. Dead letters are purged only by relays with a
// DeadRetention.
const maintenanceSQL = `/* outbox: maintenance that is late */
SELECT 'warning', m.job, format('the job %s has been due for %s, though relays are alive',
       m.job, date_trunc('second', clock_timestamp() - m.due_at)),
       'look into the relays'' logs at the level Debug; mostly another transaction holds a lock on a table, ' ||
       'see lock-wait'
  FROM outbox.maintenance m
 WHERE m.job <> 'purge dead letters' AND (m.job <> 'fold' OR EXISTS (SELECT 1 FROM outbox.counter_log))
   AND m.due_at < clock_timestamp() - interval '10 minutes'
   AND EXISTS (SELECT 1 FROM outbox.relay l WHERE l.alive_until > clock_timestamp()) ORDER BY m.job`

const schedulesSQL = `/* outbox: schedules that do not fire, that no living relay has, or that are missing */
WITH unowned AS (SELECT name, missing FROM outbox.unowned_schedule ORDER BY name LIMIT 1000),
idle AS (
  SELECT name, next_at FROM outbox.schedule
   WHERE NOT paused AND (next_at IS NULL OR next_at < clock_timestamp() - interval '1 minute') LIMIT 1000),
found (severity, name, what, remedy) AS (
  SELECT 'warning', name, 'the schedule %s is missing, though a living relay has it',
         'look again in 10 s, until the relay registers it again; else look into its log'
    FROM unowned WHERE missing
  UNION ALL
  SELECT 'warning', name, 'no living relay has the schedule %s as it was registered last',
         'look again in 10 s, until a relay that has it takes it back; else start one ' ||
         'whose relay.Config.Schedules has it; %s'
    FROM unowned WHERE NOT missing
  UNION ALL
  SELECT 'info', name, 'the schedule %s has no next firing: it has ended, or its Next misbehaved, ' ||
         'which a relay has logged',
         '%s' FROM idle WHERE next_at IS NULL
  UNION ALL
  SELECT 'warning', name, 'the schedule %s should have fired ' ||
         date_trunc('second', clock_timestamp() - next_at) || ' ago',
         'start a relay whose relay.Config.Schedules has it as it was registered last; %s'
    FROM idle WHERE next_at IS NOT NULL AND name NOT IN (SELECT name FROM unowned))
SELECT severity, name, format(what, name),
       format(remedy, 'if it is not needed: admin.Client.RemoveSchedule, or outbox schedules remove NAME')
  FROM found ORDER BY name`
