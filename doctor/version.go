package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

const thereSQL = `/* outbox: whether there is an outbox */
SELECT to_regclass('outbox.migration') IS NOT NULL, current_database()`

const versionsSQL = `/* outbox: versions that were applied */
SELECT COALESCE(max(m.version), 0), COALESCE(max(COALESCE(m.oldest_version, m.version)), 0),
       (SELECT COALESCE(string_agg(n::text, ', ' ORDER BY n), '')
          FROM generate_series(1, (SELECT max(version) FROM outbox.migration)) AS n
         WHERE NOT EXISTS (SELECT 1 FROM outbox.migration a WHERE a.version = n))
  FROM outbox.migration m`

func checkVersion(ctx context.Context, v *visit) error {
	fault := func(severity Severity, what, do string) { v.add("schema-version", severity, v.schema, what, do) }
	migrate := "run outbox migrate up, or schema.Migrate"
	if v.schema != "outbox" {
		migrate = fmt.Sprintf("run outbox migrate up for this schema, or schema.Migrate with schema.Schema(%q)",
			v.schema)
	}
	var there bool
	var database string
	if err := v.row(ctx, thereSQL, nil, &there, &database); err != nil {
		return err
	}
	if !there {
		fault(SeverityCritical, fmt.Sprintf("there is no outbox in the schema %s of the database %s", v.schema, database),
			migrate+"; if it has another schema, name that one")
		return nil
	}
	state, wrong := schema.Inspect(ctx, v.tx, schema.Schema(v.schema))
	if errors.Is(wrong, schema.ErrNotMigrated) && state.Version == 0 {
		what, do := notMigrated(wrong)
		fault(SeverityCritical, what, do)
		return nil
	}
	version, oldest, missing, err := v.versions(ctx)
	if err != nil {
		return err
	}
	if err := schema.CheckRowSecurity(ctx, v.tx, schema.Schema(v.schema)); version == 0 && errors.Is(err, schema.ErrRowSecurity) {
		fault(SeverityCritical, "row level security hides the versions from this role", "see row-security")
		return nil
	}
	switch needed := schema.Version(); {
	case version < needed:
		fault(SeverityCritical, fmt.Sprintf("the schema is at version %d, this program needs %d: relays of its version do not start",
			version, needed), migrate)
	case errors.Is(wrong, schema.ErrNotMigrated): // its functions are other code's, or another schema's
		what, do := notMigrated(wrong)
		if do == "run schema.Migrate" {
			do = migrate
		}
		fault(SeverityCritical, what+": relays of this program do not start", do)
	case version > needed && oldest <= needed:
		fault(SeverityInfo, fmt.Sprintf("the schema is at version %d, this program knows %d: "+
			"code that knows %d or newer may run beside it", version, needed, oldest),
			"upgrade the module github.com/txoutbox/outbox, here and wherever relays are of this version, "+
				"once the deploy is to stay")
	case version > needed:
		fault(SeverityWarning, fmt.Sprintf("the schema is at version %d, which needs code that knows %d; this program knows %d: "+
			"relays of its version do not start", version, oldest, needed),
			"after a rollback run the newer code again, or do what its changelog says; else upgrade the module "+
				"github.com/txoutbox/outbox, here and wherever relays are of this version")
	}
	if missing != "" {
		fault(SeverityWarning, "versions that were left out: "+missing, v.applyAgain())
	}
	return nil
}

// notMigrated splits an ErrNotMigrated into what is wrong and what to do.
func notMigrated(err error) (what, do string) {
	_, text, _ := strings.Cut(err.Error(), "not migrated: ")
	if last := strings.LastIndex(text, ": "); last >= 0 {
		return text[:last], text[last+2:]
	}
	return text, "run schema.Migrate"
}

// versions reads the newest version, the oldest code that may run beside it, and what was left out.
func (v *visit) versions(ctx context.Context) (newest, oldest int, missing string, err error) {
	err = v.row(ctx, versionsSQL, nil, &newest, &oldest, &missing)
	return newest, oldest, missing, err
}

// applyAgain mends what is missing of the schema's objects: the files do no harm when all of them
// are applied again, in their order.
func (v *visit) applyAgain() string {
	return "apply all migrations again, in their order and in one transaction: schema.SQL(schema.Schema(\"" + v.schema +
		"\")) is the script, outbox migrate print prints it, and psql -v ON_ERROR_STOP=1 -1 -f applies it"
}
