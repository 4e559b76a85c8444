package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
)

func checkOrigin(ctx context.Context, v *visit) error {
	s, of, err := origin.LookForTools(ctx, v.tx, pg.Schema(v.schema))
	if err != nil || s.DatabaseID == "" {
		return err
	}
	problem, remedy := s.Problem(of)
	switch {
	case problem != "" && of == "":
		v.add("copy", SeverityCritical, "", "this database may be a copy"+problem+
			": relays run nothing in it, and tasks can be enqueued", remedy)
		return nil
	case problem != "":
		relays, err := v.relays(ctx)
		if err != nil {
			return err
		}
		severity := SeverityCritical
		if slices.ContainsFunc(relays, func(w worker) bool { return w.alive }) {
			severity = SeverityWarning
		}
		v.add("environment", severity, of, fmt.Sprintf("relays of the environment %q run nothing: this database may be "+
			"a copy%s", of, problem), remedy)
	case s.Environment == "":
		v.add("environment", SeverityInfo, "", "no relay names a Config.Environment, "+
			"so a snapshot or clone of this database sends the tasks that wait in it",
			"set relay.Config.Environment in production first, from the app's configuration")
	default:
		v.add("environment", SeverityOK, "", fmt.Sprintf("the environment is %q: relays of another one run nothing",
			s.Environment), "")
	}
	if s.Hidden {
		v.add("copy", SeverityInfo, "", "the owner of the outbox cannot read the server's system identifier, "+
			"so not each copy by a dump is recognised",
			"GRANT EXECUTE ON FUNCTION pg_control_system() TO the owner, where the provider lets you; else see environment")
	}
	return nil
}

// follow has the checks that miss relays point to the one that says why relays are refused: more of
// them, or other handlers, would not help.
func follow(found []Finding) {
	at := slices.IndexFunc(found, func(f Finding) bool {
		return f.Check == "copy" && f.Severity == SeverityCritical || f.Check == "environment" && f.Subject != ""
	})
	if at < 0 {
		return
	}
	for i, f := range found {
		switch f.Check {
		case "relays", "unhandled-type", "starving-type", "schedules":
			switch {
			case f.Remedy == "":
			case found[at].Severity == SeverityCritical:
				found[i].Remedy = "see " + found[at].Check
			default: // relays are alive
				found[i].Remedy = "see " + found[at].Check + "; else " + f.Remedy
			}
		}
	}
}
