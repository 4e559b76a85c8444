package devpg

import (
	"context"
	"crypto/rand"
	"fmt"
	neturl "net/url"
	"strings"
	"time"

	"github.com/lib/pq"
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
	// template0, unlike template1, is pristine everywhere and never in use
	return s.create(ctx, `TEMPLATE template0 ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C'`)
}

// CopyDatabase is NewDatabase with all that is in the database of the URL, which is one of
// NewDatabase's and must not be in use.
func (s *Server) CopyDatabase(ctx context.Context, from string) (url string, drop func(), err error) {
	u, err := neturl.Parse(from)
	if err != nil {
		return "", nil, fmt.Errorf("devpg: copy a database: %w", err)
	}
	of := "TEMPLATE " + pq.QuoteIdentifier(strings.TrimPrefix(u.Path, "/"))
	major := 0
	if _, _ = fmt.Sscan(s.version, &major); major >= 15 {
		of += " STRATEGY file_copy" // half the time of the default, which also writes it to the WAL
	}
	return s.create(ctx, of)
}

func (s *Server) create(ctx context.Context, of string) (url string, drop func(), err error) {
	name := "outbox_test_" + strings.ToLower(rand.Text())
	if err := s.administer(ctx, `CREATE DATABASE `+name+` `+of); err != nil {
		return "", nil, fmt.Errorf("devpg: create database %s: %w", name, err)
	}
	drop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.administer(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`); err != nil {
			s.logf("devpg: drop database %s: %v", name, err)
		}
	}
	u := *s.url
	u.Path, u.RawPath = "/"+name, ""
	return u.String(), drop, nil
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
