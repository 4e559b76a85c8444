package devpg

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"time"
)

// NewDatabase creates an empty database with a name of its own, outbox_test_ and random letters, in
// UTF8 and the C locale, and returns its URL. It needs the right to create databases and PostgreSQL
// 13 or later. drop removes the database and breaks connections that are still open to it; it is to
// be called once, before Close, and says through Open's logf if it could not.
func (s *Server) NewDatabase(ctx context.Context) (url string, drop func(), err error) {
	return s.EncodedDatabase(ctx, "UTF8")
}

// EncodedDatabase is NewDatabase in another encoding.
func (s *Server) EncodedDatabase(ctx context.Context, encoding string) (url string, drop func(), err error) {
	name, drop, err := s.create(ctx, pristine(encoding))
	return s.urlOf(name), drop, err
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
	name, drop, err := s.create(ctx, pristine("UTF8")+` LOCALE_PROVIDER icu ICU_LOCALE '`+locale+`'`)
	return s.urlOf(name), drop, err
}

// PreparedDatabase is NewDatabase with what prepare makes of an empty one. That happens once for
// each key; all are copies of it, which are had sooner. prepare leaves no connection open.
func (s *Server) PreparedDatabase(ctx context.Context, key any, prepare func(url string) error) (
	url string, drop func(), err error) {
	template, err := s.template(ctx, key, prepare)
	if err != nil {
		return "", nil, err
	}
	return s.templated(ctx, template)
}

// CopiedDatabase is NewDatabase with what is in the database of the URL, to which nobody may be
// connected.
func (s *Server) CopiedDatabase(ctx context.Context, of string) (url string, drop func(), err error) {
	u, err := neturl.Parse(of)
	if err != nil {
		return "", nil, fmt.Errorf("devpg: copy a database: %w", err)
	}
	return s.templated(ctx, strings.TrimPrefix(u.Path, "/"))
}

func (s *Server) templated(ctx context.Context, template string) (url string, drop func(), err error) {
	of := "TEMPLATE " + template
	major := 0
	if _, _ = fmt.Sscan(s.version, &major); major >= 15 {
		of += " STRATEGY file_copy" // half the time of the default, which also writes it to the WAL
	}
	name, drop, err := s.create(ctx, of)
	return s.urlOf(name), drop, err
}

// template is the database of the key, which nobody connects to once it is prepared, not even
// autovacuum.
func (s *Server) template(ctx context.Context, key any, prepare func(url string) error) (name string, err error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if name, made := s.templates[key]; made {
		return name, nil
	}
	name, drop, err := s.create(ctx, pristine("UTF8"))
	if err != nil {
		return "", err
	}
	if err = prepare(s.urlOf(name)); err == nil {
		err = s.administer(ctx, `ALTER DATABASE `+name+` ALLOW_CONNECTIONS false`)
	}
	if err != nil {
		drop()
		return "", fmt.Errorf("devpg: prepare a database: %w", err)
	}
	s.templates[key] = name
	if s.cluster == nil { // else it goes with the server's files
		s.drops = append(s.drops, drop)
	}
	return name, nil
}

// pristine is of template0, which unlike template1 is so everywhere, and never in use.
func pristine(encoding string) string {
	return `TEMPLATE template0 ENCODING '` + encoding + `' LC_COLLATE 'C' LC_CTYPE 'C'`
}

func (s *Server) urlOf(name string) string {
	u := *s.url
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}

func (s *Server) create(ctx context.Context, of string) (name string, drop func(), err error) {
	name = "outbox_test_" + strings.ToLower(rand.Text())
	if err := s.administer(ctx, `CREATE DATABASE `+name+` `+of); err != nil {
		return "", nil, fmt.Errorf("devpg: create database %s: %w", name, err)
	}
	return name, func() {
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
