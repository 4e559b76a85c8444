package doctor_test

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/doctor"
)

func TestARoleAtItsLimitOfConnectionsIsFound(t *testing.T) {
	db := ill(t)
	app, role := as(t, db)
	conn, err := app.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	db.Do(t, `ALTER ROLE `+role+` CONNECTION LIMIT 1`)
	f := one(t, diagnosis(t, db), "connections", doctor.Critical, role, "1 of 1 connections of the role "+role, "ALTER ROLE")
	if !strings.Contains(f.Do, role) {
		t.Errorf("got %+v", f)
	}
	// Who asks as that role gets none.
	_, err = doctor.Check(t.Context(), app.DB)
	if err == nil || !strings.Contains(err.Error(), "doctor: connect: ") || !strings.Contains(err.Error(), "the limit of the role or of the database, is reached") {
		t.Errorf("got %v", err)
	}
	db.Do(t, `ALTER ROLE `+role+` CONNECTION LIMIT 10`)
	fine(t, diagnosis(t, db), "connections")
}
