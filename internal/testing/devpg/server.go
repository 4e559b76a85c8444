package devpg

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"time"
)

// Server is a running PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	found
	logf  func(format string, args ...any)
	admin *sql.DB // keeps one connection; a new one costs as much as half of a new database

	preparing sync.Mutex
	templates map[any]string // URLs by the keys of PreparedDatabase
	drops     []func()       // of templates
}

// found is a PostgreSQL that Open has found or started.
type found struct {
	url           *neturl.URL // for the administrator
	version, from string
	local         *cluster // nil unless Stop and Start work
	close         func() error
}

func newServer(f found, logf func(format string, args ...any)) (*Server, error) {
	admin, err := sql.Open("postgres", f.url.String())
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	admin.SetMaxIdleConns(1)
	s := &Server{found: f, logf: logf, admin: admin, templates: map[any]string{}}
	s.close = sync.OnceValue(func() error {
		for _, drop := range s.drops {
			drop()
		}
		return errors.Join(admin.Close(), f.close())
	})
	return s, nil
}

// URL is the address of the server for its administrator, password included. It names the database
// postgres, or the one that OUTBOX_TEST_DATABASE_URL names.
func (s *Server) URL() string { return s.url.String() }

// Close stops a server that Open started and removes its files or its container; it breaks
// connections that are still open. A server found by URL is left alone. Later calls return what the
// first did, after it is done.
func (s *Server) Close() error { return s.close() }

// Promote makes a standby a server of its own, and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var promoted bool
	err := s.admin.QueryRowContext(ctx, "SELECT pg_promote(true, 60)").Scan(&promoted)
	if err == nil && !promoted {
		err = errors.New("it is still a standby after 60 s")
	}
	if err != nil {
		return fmt.Errorf("devpg: promote: %w", err)
	}
	return nil
}

// NewDatabase creates an empty database with a name of its own, outbox_test_ and random letters, in
// UTF8 and the C locale, and returns its URL. It needs the right to create databases and PostgreSQL
// 13 or later. drop removes the database and breaks connections that are still open to it; it is to
// be called once, before Close, and says through Open's logf if it could not.
func (s *Server) NewDatabase(ctx context.Context) (url string, drop func(), err error) {
	return s.EncodedDatabase(ctx, "UTF8")
}

// EncodedDatabase is NewDatabase in another encoding.
func (s *Server) EncodedDatabase(ctx context.Context, encoding string) (url string, drop func(), err error) {
	return s.create(ctx, pristine(encoding))
}

// ErrNoICU is returned by a server that has no databases in the order of an ICU locale: it is older
// than PostgreSQL 15, or built without ICU.
var ErrNoICU = errors.New("devpg: the server has no locales of ICU for databases")

// ICUDatabase is NewDatabase with text in the order of an ICU locale.
func (s *Server) ICUDatabase(ctx context.Context, locale string) (url string, drop func(), err error) {
	var there bool
	err = s.admin.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int >= 150000
		AND EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i')`).Scan(&there)
	if err != nil || !there {
		return "", nil, cmp.Or(err, ErrNoICU)
	}
	return s.create(ctx, pristine("UTF8")+` LOCALE_PROVIDER icu ICU_LOCALE '`+locale+`'`)
}

// PreparedDatabase is NewDatabase with what prepare makes of an empty one. That happens once for
// each key; all are copies of it, which are had sooner. prepare leaves no connection open.
func (s *Server) PreparedDatabase(ctx context.Context, key any, prepare func(url string) error) (
	url string, drop func(), err error) {
	template, err := s.template(ctx, key, prepare)
	if err != nil {
		return "", nil, err
	}
	return s.CopiedDatabase(ctx, template)
}

// template is the URL of the key's database, which nobody connects to once it is prepared, not even
// autovacuum.
func (s *Server) template(ctx context.Context, key any, prepare func(url string) error) (url string, err error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if url, made := s.templates[key]; made {
		return url, nil
	}
	url, drop, err := s.create(ctx, pristine("UTF8"))
	if err != nil {
		return "", err
	}
	if err = prepare(url); err == nil {
		err = s.administer(ctx, `ALTER DATABASE `+nameOf(url)+` ALLOW_CONNECTIONS false`)
	}
	if err != nil {
		drop()
		return "", fmt.Errorf("devpg: prepare a database: %w", err)
	}
	s.templates[key] = url
	if s.local == nil { // else it goes with the server's files
		s.drops = append(s.drops, drop)
	}
	return url, nil
}

// CopiedDatabase is NewDatabase with what is in the server's database of the URL, to which nobody
// may be connected.
func (s *Server) CopiedDatabase(ctx context.Context, of string) (url string, drop func(), err error) {
	how := "TEMPLATE " + nameOf(of)
	major := 0
	if _, _ = fmt.Sscan(s.version, &major); major >= 15 {
		how += " STRATEGY file_copy" // half the time of the default, which also writes it to the WAL
	}
	return s.create(ctx, how)
}

// nameOf is the name of the database in a URL.
func nameOf(url string) string {
	u, err := neturl.Parse(url)
	if err != nil {
		return "" // the server says what is wrong
	}
	return strings.TrimPrefix(u.Path, "/")
}

// pristine is of template0, which unlike template1 is so everywhere, and never in use.
func pristine(encoding string) string {
	return `TEMPLATE template0 ENCODING '` + encoding + `' LC_COLLATE 'C' LC_CTYPE 'C'`
}

func (s *Server) create(ctx context.Context, how string) (url string, drop func(), err error) {
	name := "outbox_test_" + strings.ToLower(rand.Text())
	if err := s.administer(ctx, `CREATE DATABASE `+name+` `+how); err != nil {
		return "", nil, fmt.Errorf("devpg: create database %s: %w", name, err)
	}
	u := *s.url
	u.Path, u.RawPath = "/"+name, ""
	return u.String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.administer(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`); err != nil {
			s.logf("devpg: drop database %s: %v", name, err)
		}
	}, nil
}

// administer runs one statement.
func (s *Server) administer(ctx context.Context, statement string) error {
	if err := s.admin.PingContext(ctx); err != nil { // drops a connection that a restart broke
		return err
	}
	// A held connection: database/sql would run the statement again after a broken one.
	conn, err := s.admin.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, statement)
	return err
}
