// Package access names what a role lacks of the outbox: a right, a function, a table, the schema.
// It knows what the outbox of this version has and which rights it gives to whom.
package access

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/schema"
)

// Object is an object of the schema, as the migrations make it and as the catalogs have it.
type Object struct{ Kind, Name string }

// Grant is a right that schema/roles.sql gives a group.
type Grant struct {
	Group   string `json:"group"`   // without the schema's name
	Right   string `json:"right"`   // SELECT
	Kind    string `json:"kind"`    // schema, table (or view), sequence, function
	Object  string `json:"object"`  // without the schema's name, "" for the schema itself
	Columns bool   `json:"columns"` // of some columns only,
	Names   string `json:"names"`   // these, with blanks between them, where the script has their names
}

// The statements of the migrations and of the roles are ours, so they need not be parsed in full.
// Some of the roles' are executed as texts.
var (
	comment = regexp.MustCompile(`--[^\n]*`)
	makes   = regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|FUNCTION|INDEX|TRIGGER) ` +
		`(?:IF NOT EXISTS )?(?:outbox\.)?(\w+)([^;]*)`)
	// columnLine is a column in CREATE TABLE: two blanks, its name and its type.
	columnLine = regexp.MustCompile(`(?m)^  ([a-z]\w*) +[a-z]`)
	alterTable = regexp.MustCompile(`ALTER TABLE (?:IF EXISTS )?(?:ONLY )?outbox\.(\w+)([^;]*)`)
	dropColumn = regexp.MustCompile(`\bDROP\s+COLUMN\s+(?:IF EXISTS\s+)?([a-z]\w*)`)
	addColumn  = regexp.MustCompile(`\bADD\s+(?:COLUMN\s+)?(?:IF NOT EXISTS\s+)?([a-z]\w*)`)

	granted = regexp.MustCompile(`(?s)(?:^|\n|')GRANT ([^;']*?)\s+ON (FUNCTION|SEQUENCE|SCHEMA|TABLE)?\s*([^;']*?)\s+TO ([^;']*?)[;']`)
	right   = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|EXECUTE|USAGE)\b\s*(\(([^)]*)\))?`)
	column  = regexp.MustCompile(`\b[a-z]\w+`) // no %s
	name    = regexp.MustCompile(`outbox[_.](\w+)`)
)

// script makes the schema of this program's version.
var script = sync.OnceValue(func() string {
	text, err := schema.SQL()
	if err != nil {
		panic(err) // the name is valid
	}
	return text
})

// Objects are those of this program's version, with the statement of each.
func Objects() map[Object]string { return objectsOf(script()) }

func objectsOf(script string) map[Object]string {
	out := map[Object]string{}
	for _, m := range makes.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		out[Object{strings.ToLower(m[1]), m[2]}] = m[0]
		if m[1] == "TABLE" && strings.Contains(m[3], "PRIMARY KEY") {
			out[Object{"index", m[2] + "_pkey"}] = ""
		}
	}
	return out
}

// Columns are those of this program's version, as table.column.
func Columns() []string { return columnsOf(script()) }

func columnsOf(script string) (out []string) {
	columns := map[string][]string{}
	for o, statement := range objectsOf(script) {
		if o.Kind == "table" {
			for _, c := range columnLine.FindAllStringSubmatch(statement, -1) {
				columns[o.Name] = append(columns[o.Name], c[1])
			}
		}
	}
	for _, like := range []string{"dead_task", "done_task"} {
		columns[like] = append(columns[like], columns["task"]...)
	}
	for _, table := range alterTable.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		for _, c := range addColumn.FindAllStringSubmatch(table[2], -1) {
			columns[table[1]] = append(columns[table[1]], c[1])
		}
		for _, c := range dropColumn.FindAllStringSubmatch(table[2], -1) {
			columns[table[1]] = slices.DeleteFunc(columns[table[1]], func(name string) bool { return name == c[1] })
		}
	}
	for table, names := range columns {
		for _, name := range names {
			out = append(out, table+"."+name)
		}
	}
	slices.Sort(out)
	return out
}

// Grants are the rights of this program's version.
var Grants = sync.OnceValue(func() (all []Grant) {
	script, err := schema.RolesSQL()
	if err != nil {
		panic(err) // the name is valid
	}
	for _, m := range granted.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		kind := strings.ToLower(m[2])
		objects := [][]string{{"", ""}}
		if kind == "" {
			kind = "table"
		}
		if kind != "schema" {
			objects = name.FindAllStringSubmatch(m[3], -1)
		}
		for _, r := range right.FindAllStringSubmatch(m[1], -1) {
			columns := strings.Join(column.FindAllString(r[3], -1), " ")
			for _, object := range objects {
				for _, group := range name.FindAllStringSubmatch(m[4], -1) {
					all = append(all, Grant{group[1], r[1], kind, object[1], r[2] != "", columns})
				}
			}
		}
	}
	return all
})

// ErrRefused is relay.ErrRefused.
var ErrRefused = errors.New("relay: PostgreSQL refuses what the relay needs")

// Refusal is an error of PostgreSQL that no waiting mends, with its reason.
type Refusal struct {
	Reason string // what is missing, to whom, and what to do: without PostgreSQL's words
	err    error
}

// Error has PostgreSQL's words, too.
func (r *Refusal) Error() string { return r.Reason + " (" + pgerr.WithoutDSN(r.err).Error() + ")" }

func (r *Refusal) Unwrap() []error { return []error{ErrRefused, r.err} }

// Reason is that of the Refusal in err's chain, or else the SQLSTATE.
func Reason(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return fmt.Sprintf("a statement fails with SQLSTATE %s, as the log says; outbox doctor looks for the reason",
		pgerr.Code(err))
}

// Querier is a transaction, a connection or a pool.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Needed reports whether Explain needs a connection to explain err.
func Needed(err error) bool {
	switch pgerr.Code(err) {
	case "42501", "3F000", "42P01", "42703", "42883":
		return !pgerr.Dial(err)
	}
	return false
}

// Explain makes a [Refusal] of an error that the current role got of a statement of the relay, if
// it finds the reason. It returns other errors as they are. The second error is of the connection,
// which may be broken then.
func Explain(ctx context.Context, q Querier, in string, err error) (explained, failed error) {
	if !Needed(err) {
		return err, nil
	}
	role, database, lacking, failed := look(ctx, q, in)
	lacking = slices.DeleteFunc(lacking, func(l lack) bool { return !l.named(in, err) })
	if len(lacking) == 0 { // an object of the app's, as in a trigger
		return err, failed
	}
	return &Refusal{reason(role, database, in, lacking), err}, nil
}

// ExplainLogin makes a [Refusal] of the error of a connection that PostgreSQL refuses for good. The
// names may be "": not known.
func ExplainLogin(role, database string, err error) error {
	if !pgerr.Dial(err) || !pgerr.Lasting(err) {
		return err
	}
	who, where := "the role", "the database"
	grant := "GRANT CONNECT ON DATABASE … TO …"
	if role != "" {
		who, where = fmt.Sprintf("the role %q", role), fmt.Sprintf("the database %q", database)
		grant = "GRANT CONNECT ON DATABASE " + quote(database) + " TO " + quote(role)
	}
	text, do := "PostgreSQL refuses the connection of "+who+" to "+where, "the log has the reason"
	switch code := pgerr.Code(err); {
	case strings.HasPrefix(code, "28"):
		text = "PostgreSQL refuses the login of " + who
		do = "check its name and password in the connection string, ALTER ROLE … LOGIN, and the server's pg_hba.conf"
	case code == "3D000", code == "57P04":
		text, do = where+" does not exist", "put it back, or check its name in the connection string"
	case code == "42501":
		text, do = who+" lacks CONNECT on "+where, grant
	case code == "55000":
		text, do = where+" takes no connections", "ALTER DATABASE … ALLOW_CONNECTIONS true"
	}
	return &Refusal{fmt.Sprintf("%s (SQLSTATE %s): %s", text, pgerr.Code(err), do), err}
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// need is an object that a relay needs, and the right to it, "" for none.
type need struct {
	Right   string `json:"right"`
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Columns bool   `json:"columns"`
}

// needs are a relay's.
func needs() (all []need) {
	all = append(all, need{Kind: "schema"})
	for o := range Objects() {
		if o.Kind != "index" && o.Kind != "trigger" {
			all = append(all, need{Kind: o.Kind, Object: o.Name})
		}
	}
	for _, c := range Columns() {
		all = append(all, need{Kind: "column", Object: c})
	}
	for _, g := range Grants() {
		if g.Group == "worker" {
			all = append(all, need{g.Right, g.Kind, g.Object, g.Columns})
		}
	}
	return all
}

// An object is there if it has a row; a function may have several.
const lackingSQL = `/* outbox: see what the role lacks */
WITH ns AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1),
need AS (SELECT * FROM jsonb_to_recordset($2::jsonb) AS n ("right" text, kind text, object text, columns boolean)),
found AS (
  SELECT n.*, o.oid
    FROM need n LEFT JOIN LATERAL (
      SELECT ns.oid FROM ns WHERE n.kind = 'schema'
      UNION ALL
      SELECT c.oid FROM pg_catalog.pg_class c, ns
       WHERE c.relnamespace = ns.oid AND n.kind IN ('table', 'view', 'sequence') AND c.relname = n.object
      UNION ALL
      SELECT p.oid FROM pg_catalog.pg_proc p, ns
       WHERE p.pronamespace = ns.oid AND n.kind = 'function' AND p.proname = n.object
      UNION ALL
      SELECT c.oid FROM pg_catalog.pg_class c, ns, pg_catalog.pg_attribute a
       WHERE c.relnamespace = ns.oid AND n.kind = 'column' AND c.relname = split_part(n.object, '.', 1)
         AND a.attrelid = c.oid AND a.attname = split_part(n.object, '.', 2) AND NOT a.attisdropped) AS o ON true),
lacking AS (
  SELECT DISTINCT CASE WHEN oid IS NULL THEN '' ELSE "right" END AS "right", kind, object FROM found
   WHERE oid IS NULL OR "right" <> '' AND NOT CASE kind
         WHEN 'schema' THEN has_schema_privilege(oid, "right")
         WHEN 'function' THEN has_function_privilege(oid, "right")
         WHEN 'sequence' THEN has_sequence_privilege(oid, "right")
         ELSE CASE WHEN columns THEN has_any_column_privilege(oid, "right")
                   ELSE has_table_privilege(oid, "right") END END)
SELECT current_user, current_database(), "right", kind, object FROM lacking
 ORDER BY "right" <> '', kind = 'schema' DESC, kind, object, "right"`

// lack is an object or a right that is missing.
type lack struct{ right, kind, object string }

func look(ctx context.Context, q Querier, in string) (role, database string, lacking []lack, err error) {
	list, err := json.Marshal(needs())
	if err != nil {
		return "", "", nil, err
	}
	rows, err := q.QueryContext(ctx, lackingSQL, in, string(list))
	if err != nil {
		return "", "", nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l lack
		if err := rows.Scan(&role, &database, &l.right, &l.kind, &l.object); err != nil {
			return "", "", nil, err
		}
		lacking = append(lacking, l)
	}
	return role, database, lacking, errors.Join(rows.Err(), rows.Close())
}

// named reports whether PostgreSQL's error names the object, as it does in each language.
func (l lack) named(in string, err error) bool {
	object := l.object[strings.LastIndexByte(l.object, '.')+1:]
	if l.kind == "schema" {
		object = in
	}
	return regexp.MustCompile(`\b` + object + `\b`).MatchString(err.Error())
}

// reason says what is missing. Without an object a right to it is of no use.
func reason(role, database, in string, lacking []lack) string {
	at := func(l lack) string { return in + "." + l.object }
	if in != schemaname.Default {
		at = func(l lack) string { return `"` + in + `".` + l.object }
	}
	switch first := lacking[0]; {
	case first.right == "" && first.kind == "schema":
		return fmt.Sprintf("the schema %q is missing in the database %q: put it back, if it was renamed or dropped; "+
			"schema.Migrate (outbox migrate up) makes an empty outbox", in, database)
	case first.right == "":
		return fmt.Sprintf("the %s %s is missing: put it back, if it was renamed or dropped; "+
			"outbox migrate print | psql -v ON_ERROR_STOP=1 -1 makes what is missing, a table without rows",
			first.kind, at(first))
	}
	var texts, grants []string
	for i := 0; i < len(lacking); {
		of, rights := lacking[i], []string{}
		for ; i < len(lacking) && lacking[i].kind == of.kind && lacking[i].object == of.object; i++ {
			rights = append(rights, lacking[i].right)
		}
		object, kind := at(of), strings.ToUpper(of.kind)+" "
		if of.kind == "schema" {
			object = strings.TrimSuffix(object, ".")
		}
		all := strings.Join(rights, ", ")
		texts = append(texts, fmt.Sprintf("%s on the %s %s", all, of.kind, object))
		grants = append(grants, fmt.Sprintf("GRANT %s ON %s%s TO %s", all, kind, object, quote(role)))
	}
	return fmt.Sprintf("the role %q lacks %s: outbox roles apply (schema.GrantRoles) gives it to members of %s_worker, "+
		"or %s", role, strings.Join(texts, " and "), in, strings.Join(grants, "; "))
}
