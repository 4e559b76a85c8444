package doctor

const foreignKeysSQL = `/* outbox: foreign keys of the app */
SELECT 'critical', k.conname, format('the foreign key %s of the table %s %s when a row of %s is deleted: %s',
       k.conname, k.conrelid::regclass,
       CASE k.confdeltype WHEN 'c' THEN 'deletes the app''s row' WHEN 'n' THEN 'sets the app''s reference to NULL'
            WHEN 'd' THEN 'sets the app''s reference to its default'
            ELSE 'refuses that, so the task cannot run or finish' END,
       c.relname,
       CASE c.relname WHEN 'task' THEN 'each claim of a Tx or Batch task deletes its row, also if its attempt ' ||
            'fails and puts the row back, and so does each task that finishes'
            ELSE 'the outbox does that in its normal work' END),
       format('ALTER TABLE %s DROP CONSTRAINT %I; keep the task''s id without a foreign key',
              k.conrelid::regclass, k.conname)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_class f ON f.oid = k.conrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND n.nspname = $1 AND f.relnamespace <> n.oid
 ORDER BY 2, 3 LIMIT 1000`
