package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// sent is a StatsQuerier that keeps the statement and answers with an error.
type sent struct{ query string }

var errSent = errors.New("sent")

func (s *sent) QueryContext(_ context.Context, query string, _ ...any) (*sql.Rows, error) {
	s.query = query
	return nil, errSent
}

func TestStatsReadTheSchemaThatIsAskedFor(t *testing.T) {
	t.Parallel()
	for schema, opts := range map[string][]outbox.Option{"outbox": nil, "select": {outbox.Schema("select")}} {
		var s sent
		if _, err := outbox.Stats(t.Context(), &s, opts...); !errors.Is(err, errSent) {
			t.Errorf("%s: got %v, want the querier's own error", schema, err)
		}
		if n := strings.Count(s.query, `"`+schema+`".`); n != 4 {
			t.Errorf("%s: it is read in %d places of 4: %s", schema, n, s.query)
		}
	}
}

func TestStatsRefuseOptionsThatMeanNothing(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]outbox.Option{{outbox.Priority(1)}, {outbox.After(time.Hour)}, {outbox.Schema("Bad")}, {nil}} {
		var s sent
		if _, err := outbox.Stats(t.Context(), &s, opts...); !errors.Is(err, outbox.ErrInvalidOption) || s.query != "" {
			t.Errorf("got %v and the statement %q, want ErrInvalidOption before any SQL", err, s.query)
		}
	}
}
