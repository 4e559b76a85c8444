package doctor

import (
	"context"

	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
)

func checkOrigin(ctx context.Context, v *visit) error {
	s, err := origin.Look(ctx, v.tx, pg.Schema(v.schema), "")
	if err != nil || s.DatabaseID == "" {
		return err
	}
	if problem, remedy := s.Problem(""); problem != "" {
		v.add("copy", SeverityCritical, "", "this database may be a copy"+problem+
			": relays run nothing in it, and tasks can be enqueued", remedy)
		return nil
	}
	if s.Hidden {
		v.add("copy", SeverityInfo, "", "the owner of the outbox cannot read the server's system identifier, "+
			"so not each copy by a dump is recognised",
			"GRANT EXECUTE ON FUNCTION pg_control_system() TO the owner, where the provider lets you; else see environment")
	}
	if s.Environment == "" {
		v.add("environment", SeverityInfo, "", "no relay names a Config.Environment, "+
			"so a snapshot or clone of this database sends the tasks that wait in it",
			"set relay.Config.Environment in production first, from the app's configuration")
	}
	return nil
}
