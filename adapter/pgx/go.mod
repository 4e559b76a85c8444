// An app's go.sum has at most 49 lines with it.
module github.com/txoutbox/outbox/adapter/pgx

go 1.25.0

replace github.com/txoutbox/outbox => ../..

require (
	github.com/jackc/pgx/v5 v5.5.5
	github.com/txoutbox/outbox v0.1.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20221227161230-091c0ba34f0a // indirect
	github.com/jackc/puddle/v2 v2.2.1 // indirect
	github.com/jmoiron/sqlx v1.3.5 // indirect
	github.com/lib/pq v1.11.2 // indirect
	github.com/sethvargo/go-retry v0.2.4 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/crypto v0.17.0 // indirect
	golang.org/x/sync v0.8.0 // indirect
	golang.org/x/text v0.14.0 // indirect
)
