package outbox_test

import (
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// refused is input that Enqueue must refuse before any SQL is sent.
type refused struct {
	about string
	task  outbox.TaskSpec
	want  error
	text  string // a part of the error
}

func refusals() (all []refused) {
	add := func(about string, task outbox.TaskSpec, want error, text string) {
		all = append(all, refused{about, task, want, text})
	}
	for about, c := range map[string]struct{ name, text string }{
		"an empty type":         {"", "empty"},
		"an over-long type":     {strings.Repeat("x", 129), "129 bytes"},
		"one in wide letters":   {strings.Repeat("ä", 65), "130 bytes"},
		"a type with a NUL":     {"A\x00", `'\x00'`},
		"a type with a newline": {"A\nB", `'\n'`},
		"a type with a bidi":    {"A\u202eB", `'\u202e'`},
		"a type not in UTF-8":   {"A\xff", "UTF-8"},
	} {
		add(about, outbox.TaskSpec{Type: c.name}, outbox.ErrInvalidType, c.text)
	}
	for _, c := range []struct {
		option outbox.Option
		text   string
	}{
		{nil, "an Option is nil"},
		{outbox.Priority(math.MaxInt16 + 1), "Priority(32768)"},
		{outbox.Priority(math.MinInt16 - 1), "Priority(-32769)"},
		{outbox.MaxAttempts(-1), "MaxAttempts(-1)"},
		{outbox.MaxAttempts(math.MaxInt16 + 1), "MaxAttempts(32768)"},
		{outbox.Timeout(-1), "Timeout(-1ns): must be between 1ms and 576h0m0s"},
		{outbox.Timeout(time.Millisecond - 1), "Timeout(999.999µs)"},
		{outbox.Timeout(outbox.MaxTimeout + 1), "Timeout(576h0m0.000000001s)"},
		{outbox.MaxPayload(-1), "MaxPayload(-1)"},
		{outbox.MaxPayload(16<<20 + 1), "MaxPayload(16777217)"},
		{outbox.RunAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "RunAt: the year 10000"},
		{outbox.RunAt(time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -3600))), "RunAt: the year 10000"},
		{outbox.ExpiresAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "ExpiresAt: the year 10000"},
		{outbox.ExpiresAfter(-time.Second), "ExpiresAfter(-1s): must be at least 1µs, or 0 for never"},
		{outbox.ExpiresAfter(999), "ExpiresAfter(999ns)"},
		{outbox.OrderedBy(""), "OrderedBy: the key has 0 bytes"},
		{outbox.OrderedBy(strings.Repeat("k", 257)), "OrderedBy: the key has 257 bytes"},
		{outbox.OrderedBy("a\x00"), "OrderedBy: the key has 2 bytes"},
		{outbox.SkipFailed(), "SkipFailed: only for"},
		{outbox.Schema(""), `Schema("")`},
		{outbox.Schema("Outbox"), `Schema("Outbox")`},
		{outbox.Schema(`a"; DROP TABLE usr; --`), "Schema("},
		{outbox.Schema("1a"), `Schema("1a")`},
		{outbox.Schema("ä"), "Schema("},
		{outbox.Schema(strings.Repeat("s", 64)), "Schema("},
		{outbox.Headers(map[string]string{"k": "secret\x00"}), `Headers: "k"`},
		{outbox.AddHeaders(map[string]string{"k": "secret\x00"}), `Headers: "k"`},
		{outbox.Headers(map[string]string{"k": "secret\xff"}), `Headers: "k"`},
		{outbox.Headers(map[string]string{"\x00": ""}), `Headers: "\x00"`},
		{outbox.Headers(map[string]string{"k": strings.Repeat("x", 4<<10)}), "Headers: 4097 bytes"},
		{outbox.Headers(map[string]string{"outbox-event-id": "7"}), `Headers: "outbox-event-id"`},
		{outbox.AddHeaders(map[string]string{"OUTBOX-x": "7"}), `Headers: "OUTBOX-x"`},
		{outbox.Headers(map[string]string{"outbox-codec": "c"}), `Headers: "outbox-codec"`},
		{outbox.BeforeEnqueue(nil), "BeforeEnqueue(nil): give it a function"},
		{outbox.Codec(nil), "Codec: codec 0 is nil"},
		{outbox.Codec(sealed{name: "c"}, nil), "Codec: codec 1 is nil"},
		{outbox.Codec((*sealed)(nil)), "Codec: codec 0: its Name: panic: "},
		{outbox.Codec(sealed{name: "c"}, sealed{name: "c"}), `Codec: two codecs are named "c"`},
		{outbox.Codec(sealed{}), `Codec: codec 0: the name "": use 1 to 64 bytes`},
		{outbox.Codec(sealed{name: strings.Repeat("c", 65)}), "use 1 to 64 bytes"},
		{outbox.Codec(sealed{name: "a\n"}), "use 1 to 64 bytes"},
	} {
		add("the option of "+c.text, outbox.TaskSpec{Type: "T", Options: []outbox.Option{c.option}},
			outbox.ErrInvalidOption, c.text)
	}
	for text, opts := range map[string][]outbox.Option{
		"ExpiresAt(1970-01-01 00:01:00 +0000 UTC): must be after": {outbox.RunAt(time.Unix(60, 0)),
			outbox.ExpiresAt(time.Unix(60, 0).UTC())},
		"ExpiresAfter(2160000h0m0s): it is too long": {outbox.After(2160000 * time.Hour),
			outbox.ExpiresAfter(2160000 * time.Hour)},
		"ExpiresAfter(2400h0m0s): it is too long": {outbox.RunAt(time.Date(9999, 12, 1, 0, 0, 0, 0, time.UTC)),
			outbox.ExpiresAfter(2400 * time.Hour)},
		"must be after RunAt and After": {outbox.After(time.Hour),
			outbox.ExpiresAt(time.Now().Add(time.Minute))},
		"Unique: the key is empty":                              {outbox.Unique("")},
		"257 bytes, at most 256":                                {outbox.Unique(strings.Repeat("k", 257))},
		"valid UTF-8 without NUL":                               {outbox.Unique("a\x00", outbox.UntilDone())},
		"keys that begin with $payload":                         {outbox.Unique("$payload:1")},
		"Unique: For(-1s): must be between 1µs and 876000h0m0s": {outbox.UniquePayload(outbox.For(-time.Second))},
		"Unique: For(876000h0m0.000000001s)":                    {outbox.Unique("k", outbox.For(876000*time.Hour+1))},
		"Unique: For(999ns)":                                    {outbox.Unique("k", outbox.For(999))},
		"Unique: a UniqueOption is nil":                         {outbox.UniquePayload(outbox.UntilDone(), nil)},
		"Unique and UniquePayload: ": {outbox.Unique("k"), outbox.UniquePayload(),
			outbox.UniquePayload()},
		"Unique and UniquePayload: a task":                       {outbox.UniquePayload(), outbox.Unique("k")},
		"OnConflict(replace): it needs":                          {outbox.OnConflict(outbox.ConflictReplace)},
		"OnConflict(reschedule): it needs":                       {outbox.OnConflict(outbox.ConflictReschedule)},
		`OnConflict("anew"): must be ConflictSkip, ConflictRepl`: {outbox.Unique("key"), outbox.OnConflict("anew")},
	} {
		add("the options of "+text, outbox.TaskSpec{Type: "T", Options: opts}, outbox.ErrInvalidOption, text)
	}
	add("a Marshaler's own error", outbox.TaskSpec{Type: "T", Payload: []any{failing{}}}, errMarshaler, "failed")
	for _, c := range refusedPayloads() {
		add(c.about, outbox.TaskSpec{Type: "T", Payload: c.payload, Options: c.opts}, c.want, c.text)
	}
	return all
}

// I7.
func TestRefusedInput(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{{"sends_no_SQL_and_leaves_the_transaction_usable", func(t *testing.T, e *env) {
		name, tx := newType(), e.tx(t)
		good := outbox.TaskSpec{Type: name, Payload: 1}
		for _, c := range refusals() {
			_, alone := outbox.Enqueue(t.Context(), tx, c.task.Type, c.task.Payload, c.task.Options...)
			_, among := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{good, c.task, good})
			for _, err := range []error{alone, among} {
				switch {
				case !errors.Is(err, c.want):
					t.Errorf("%s: got %v, want %v", c.about, err, c.want)
				case !strings.Contains(err.Error(), c.text):
					t.Errorf("%s: got %q, want it to say %q", c.about, err, c.text)
				case strings.Contains(err.Error(), "secret"):
					t.Errorf("%s: the error shows a value: %q", c.about, err)
				}
			}
			if among != nil && !strings.Contains(among.Error(), "task 1 of 3") {
				t.Errorf("%s: got %q, want it to say task 1 of 3", c.about, among)
			}
		}
		if _, err := outbox.EnqueueMany(t.Context(), tx,
			[]outbox.TaskSpec{good, {Type: name, Options: []outbox.Option{outbox.Schema("other")}}}); !errors.Is(err,
			outbox.ErrInvalidOption) {
			t.Errorf("two schemas in one call: got %v, want ErrInvalidOption", err)
		}
		if tx.statements != 0 {
			t.Errorf("got %d statements, want 0", tx.statements)
		}
		put(t, tx, name, 2)
		end(t, tx.commit)
		if got := one(t, e.db, name).Payload; got != "2" {
			t.Errorf("got the task %s, want 2", got)
		}
	}}})
}

func TestStatsRefuseABadSchemaBeforeAnySQL(t *testing.T) {
	t.Parallel()
	for _, o := range []outbox.SchemaOption{outbox.Schema("Bad"), outbox.Schema(""), {}} {
		if _, err := outbox.Stats(t.Context(), nil, o); !errors.Is(err, outbox.ErrInvalidOption) {
			t.Errorf("got %v, want ErrInvalidOption", err)
		}
	}
}

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	dbx := sqlx.NewDb(d.db, "postgres")
	for about, q := range map[string]outbox.Querier{
		"nil":                          nil,
		"a nil *sql.Tx":                (*sql.Tx)(nil),
		"a nil *sqlx.Tx":               (*sqlx.Tx)(nil),
		"a nil *sql.Conn":              (*sql.Conn)(nil),
		"a nil *sql.DB":                (*sql.DB)(nil),
		"a *sql.DB":                    d.db,
		"a *sqlx.DB":                   dbx,
		"a *sql.DB in another type":    struct{ *sql.DB }{d.db},
		"a *sqlx.DB without its names": dbx.Unsafe(),
	} {
		_, one := outbox.Enqueue(t.Context(), q, "T", 1)
		_, many := outbox.EnqueueMany(t.Context(), q, []outbox.TaskSpec{{Type: "T"}, {Type: "T"}})
		_, none := outbox.EnqueueMany(t.Context(), q, nil)
		_, typed := outbox.NewTaskType[int]("T").Enqueue(t.Context(), q, 1)
		for _, err := range []error{one, many, none, typed} {
			if !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s: got %v, want ErrNoTransaction", about, err)
			}
		}
	}
	wantTasks(t, d.db, "T", 0)
}

func TestAConnectionIsRefusedWithoutATransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ctx := t.Context()
	for _, driver := range []string{"postgres", "pgx"} {
		conn, err := sqlx.NewDb(open(t, driver, d.url), driver).Connx(ctx)
		must(err)
		defer conn.Close()
		for about, q := range map[string]outbox.Querier{"a *sql.Conn": conn.Conn, "a *sqlx.Conn": conn} {
			name := newType()
			waits := d.enqueue(t, name, 0, outbox.After(time.Hour)).ID
			enqueue := func(when string, want func(error) bool) {
				t.Helper()
				_, one := outbox.Enqueue(ctx, q, name, 1)
				_, many := outbox.EnqueueMany(ctx, q, []outbox.TaskSpec{{Type: name}, {Type: name}})
				_, keyed := outbox.Enqueue(ctx, q, name, 1, outbox.Unique("k"))
				_, due := outbox.RunNow(ctx, q, waits)
				_, canceled := outbox.Cancel(ctx, q, waits)
				for _, err := range []error{one, many, keyed, due, canceled} {
					if !want(err) {
						t.Errorf("%s, %s %s: got %v", driver, about, when, err)
					}
				}
			}
			enqueue("without a transaction", func(err error) bool { return errors.Is(err, outbox.ErrNoTransaction) })
			exec(t, q, "BEGIN")
			enqueue("after BEGIN", func(err error) bool { return err == nil })
			wantTasks(t, d.db, name, 1)
			exec(t, q, "COMMIT")
			wantTasks(t, d.db, name, 4) // all but the canceled one
			exec(t, q, "BEGIN")
			_, _ = q.ExecContext(ctx, "SELECT 1/0")
			enqueue("in a failed transaction", func(err error) bool { return pgerr.Code(err) == "25P02" })
			exec(t, q, "ROLLBACK")
		}
	}
}
