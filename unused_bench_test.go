package outbox_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/schema"
)

// withoutFeatures is the outbox without what unique keys, ordering keys, timeouts and iterations added to the table of tasks.
const withoutFeatures = `
CREATE FUNCTION outbox.task_schedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.state := 'scheduled';
  RETURN NEW;
END
$$;
CREATE TRIGGER task_schedule BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.state = 'ready' AND NEW.run_at > now()) EXECUTE FUNCTION outbox.task_schedule();
DROP TRIGGER task_arrive ON outbox.task; DROP TRIGGER task_next ON outbox.task; DROP TRIGGER task_left ON outbox.task;
DROP VIEW outbox.keyed_task;
DO $$
BEGIN
  EXECUTE replace(replace(replace(pg_get_functiondef('outbox.task_wake()'::regprocedure), ' timeout_ms, ', ' '),
    'AND (timeout_ms > 0) IS NOT FALSE', ''), 'OR state = ''waiting'' AND ordering_key IS NOT NULL', '');
  EXECUTE replace(replace(pg_get_functiondef('outbox.check_task(bigint)'::regprocedure),
    'WHEN state = ''ready'' AND timeout_ms <= 0 THEN ''timeout''', ''), 'OR state = ''waiting'' AND ordering_key IS NOT NULL', '');
END
$$;
ALTER TABLE outbox.task
  DROP COLUMN unique_key, DROP COLUMN unique_until_done, DROP COLUMN ordering_key,
  DROP COLUMN skip_failed, DROP COLUMN timeout_ms, DROP COLUMN iterations`

// BenchmarkUnusedFeatures prints what an Enqueue pays for features that it does not use, as medians of ratios of alternating rounds:
// "features" is the outbox as it is to one without the columns and triggers of keys, timeouts and iterations, "counts" is the latter
// to one that does not count either: go test . -run '^$' -bench UnusedFeatures -benchtime 1x
func BenchmarkUnusedFeatures(b *testing.B) {
	d := newDatabase(b)
	for name, without := range map[string]string{"counting": withoutFeatures, "plain": withoutFeatures + ";" + withoutCounts} {
		if err := schema.Migrate(b.Context(), d.db, schema.Schema(name)); err != nil {
			b.Fatal(err)
		}
		exec(b, d.db, strings.ReplaceAll(without, "outbox.", name+"."))
	}
	tx := begin(b, d.db)
	single := func(name string) time.Duration {
		start := time.Now()
		for i := range 100 {
			if _, err := outbox.Enqueue(b.Context(), tx, "T", i, outbox.Schema(name)); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start)
	}
	bulk := func(name string) time.Duration {
		start := time.Now()
		exec(b, tx, `INSERT INTO `+name+`.task (task_type, payload) SELECT 'T', to_jsonb(n) FROM generate_series(1, 1000) n`)
		return time.Since(start)
	}
	for b.Loop() {
		for name, insert := range map[string]func(string) time.Duration{"single": single, "bulk": bulk} {
			var features, counts []float64
			for range 60 { // each goes first as often
				with, counting, plain := insert("outbox"), insert("counting"), insert("plain")
				plain += insert("plain")
				counting += insert("counting")
				with += insert("outbox")
				features = append(features, with.Seconds()/counting.Seconds())
				counts = append(counts, counting.Seconds()/plain.Seconds())
			}
			b.ReportMetric(middle(features), "features/"+name)
			b.ReportMetric(middle(counts), "counts/"+name)
		}
		b.ReportMetric(0, "ns/op")
	}
}

func middle(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
