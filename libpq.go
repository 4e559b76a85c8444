package outbox

import (
	"database/sql"
	"database/sql/driver"
	"reflect"
	"slices"

	"github.com/lib/pq"
)

// lib/pq sends a statement with arguments in two round trips and one without in one. So an Enqueue on its connections
// has its arguments in the text. A driver that keeps statements by their text, as pgx does, would keep each.
//
// A transaction does not tell its driver. Its pool has a connector, whose type does; both are fields that database/sql sets once
// and does not export, so they are looked at and never changed or called. Where one is not found, or the
// connector is another's that may wrap lib/pq, the arguments travel as arguments.
var (
	txPool        = fieldOf[sql.Tx, *sql.DB]("db")
	connPool      = fieldOf[sql.Conn, *sql.DB]("db")
	poolConnector = fieldOf[sql.DB, driver.Connector]("connector")

	// Their connections are lib/pq's own, or ours around them: the handlers' connectors take no other.
	pqConnectors = []reflect.Type{reflect.TypeFor[*connector](), reflect.TypeFor[*pq.Connector](), reflect.TypeFor[*pq.NoticeHandlerConnector](), reflect.TypeFor[*pq.NotificationHandlerConnector]()}
	pqDrivers    = []reflect.Type{reflect.TypeFor[*pq.Driver](), reflect.TypeFor[pq.Driver]()}
	driverType   = reflect.TypeFor[driver.Driver]()
	databaseSQL  = reflect.TypeFor[sql.DB]().PkgPath()
)

// onLibPQ reports whether tx is known to be on a connection of lib/pq.
func onLibPQ(tx Querier) bool {
	var pool reflect.Value
	switch tx := plainTx(tx).(type) {
	case *sql.Tx:
		pool = txPool.of(reflect.ValueOf(tx))
	case *sql.Conn:
		pool = connPool.of(reflect.ValueOf(tx))
	}
	connector := poolConnector.of(pool)
	if !connector.IsValid() || connector.IsNil() {
		return false
	}
	return isLibPQ(connector.Elem())
}

// isLibPQ knows the connectors of sql.OpenDB, and that of sql.Open, which has lib/pq's driver in a field.
func isLibPQ(connector reflect.Value) bool {
	t := connector.Type()
	if t.Kind() != reflect.Struct || t.PkgPath() != databaseSQL {
		return slices.Contains(pqConnectors, t)
	}
	for i := range connector.NumField() {
		if f := connector.Field(i); f.Type() == driverType && !f.IsNil() {
			return slices.Contains(pqDrivers, f.Elem().Type())
		}
	}
	return false
}

// field is where a struct has a field, or -1.
type field int

func fieldOf[S, F any](name string) field {
	f, ok := reflect.TypeFor[S]().FieldByName(name)
	if !ok || len(f.Index) != 1 || f.Type != reflect.TypeFor[F]() {
		return -1
	}
	return field(f.Index[0])
}

// of is the field of what the pointer points to, or the zero Value.
func (f field) of(pointer reflect.Value) reflect.Value {
	if f < 0 || !pointer.IsValid() || pointer.IsNil() {
		return reflect.Value{}
	}
	return pointer.Elem().Field(int(f))
}
