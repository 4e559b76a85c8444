package devpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Pooler is a PgBouncer in transaction mode before a server. Its methods are safe for concurrent use.
type Pooler struct {
	dir     *directory
	process *process
	server  *url.URL
	address string
	front   *front // nil if it needs none
}

// PgBouncer 1.18 (Debian 12's) to 1.20 may end with "server in bad state: 11" when a statement is canceled and its client
// goes, as database/sql's drivers do (pgbouncer/pgbouncer#822). So in the tests a request ends its connection before these.
const cancelsFrom = 21

// What a user would have to set for lib/pq and pgx, and what makes it a harder test: transactions of one client go
// to the server's sessions in turn, so what is left in one is missed in the next.
var poolerSettings = map[string]string{
	"pool_mode":                 "transaction",
	"ignore_startup_parameters": "extra_float_digits", // lib/pq sends it
	"server_round_robin":        "1",
	"default_pool_size":         "60", // sessions of one database; the tests' servers take 400
	"max_client_conn":           "4000",
	"server_idle_timeout":       "5",
	"auth_type":                 "md5",
	"listen_addr":               "127.0.0.1",
	"unix_socket_dir":           "",
	"log_connections":           "0",
	"log_disconnections":        "0",
	"stats_period":              "600",
}

// OpenPooler starts a PgBouncer before the server, for the server's administrator and any database. Its program is
// found on PATH, in /usr/sbin or in /usr/local/sbin. Like a server it runs as another user than root, and ends when this process
// does. The caller must call Close.
func (s *Server) OpenPooler(ctx context.Context) (*Pooler, error) {
	bin, err := findPooler()
	if err != nil {
		return nil, fmt.Errorf("devpg: pooler: %w", err)
	}
	dir, err := newDirectory(false)
	if err != nil {
		return nil, fmt.Errorf("devpg: pooler: %w", err)
	}
	p := &Pooler{dir: dir, server: s.url}
	for range 20 {
		if err = p.start(ctx, bin); !errors.Is(err, errPortTaken) {
			break
		}
	}
	version := poolerVersion(ctx, bin)
	passed := ""
	if minor, _ := strconv.Atoi(strings.Split(version+".0", ".")[1]); err == nil && strings.HasPrefix(version, "1.") && minor < cancelsFrom {
		if p.front, err = newFront(p.address); err == nil {
			p.address, passed = p.front.listener.Addr().String(), ", where a cancel request ends its connection"
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devpg: pooler: %w", err), p.Close())
	}
	s.logf("devpg: pooler: PgBouncer %s from %s%s", version, bin, passed)
	return p, nil
}

// poolerVersion is like 1.18.0, or empty if it does not say.
func poolerVersion(ctx context.Context, bin string) string {
	said, _ := exec.CommandContext(ctx, bin, "--version").Output()
	line, _, _ := strings.Cut(string(said), "\n")
	_, version, _ := strings.Cut(line, " ")
	return strings.TrimSpace(version)
}

func findPooler() (string, error) {
	path, err := exec.LookPath("pgbouncer")
	for _, usual := range []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		if err != nil {
			path, err = exec.LookPath(usual)
		}
	}
	if err != nil {
		return "", errors.New("no program pgbouncer on PATH or in /usr/sbin: install the package pgbouncer")
	}
	return filepath.Abs(path)
}

// start starts it on a free port and waits until it answers.
func (p *Pooler) start(ctx context.Context, bin string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return err
	}
	p.address = "127.0.0.1:" + strconv.Itoa(port)
	config, users := filepath.Join(p.dir.path, "pgbouncer.ini"), filepath.Join(p.dir.path, "users")
	password, _ := p.server.User.Password()
	if err := p.dir.writeFile(users, quoted(p.server.User.Username())+" "+quoted(password)+"\n"); err != nil {
		return err
	}
	if err := p.dir.writeFile(config, p.config(port, users)); err != nil {
		return err
	}
	if p.process, err = p.dir.spawn(p.log(), filepath.Dir(bin), filepath.Base(bin), config); err != nil {
		return err
	}
	if _, err = untilReady(ctx, p.through(p.server), p.process.exited); err == nil {
		return nil
	}
	p.halt()
	said, _ := os.ReadFile(p.log()) // what can be read is enough for a message
	if strings.Contains(string(said), "ddress already in use") {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return fmt.Errorf("%w\n%s", err, said)
}

func (p *Pooler) config(port int, users string) string {
	serverPort := p.server.Port()
	if serverPort == "" {
		serverPort = "5432"
	}
	settings := map[string]string{"listen_port": strconv.Itoa(port), "auth_file": users}
	maps.Copy(settings, poolerSettings)
	var b strings.Builder
	fmt.Fprintf(&b, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", p.server.Hostname(), serverPort)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = %s\n", name, settings[name])
	}
	return b.String()
}

// quoted is a name in PgBouncer's file of users.
func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// URL is that of one of the server's databases, by way of the pooler.
func (p *Pooler) URL(direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return "", errors.New("devpg: pooler: the address is not a URL") // url.Parse quotes it, with its password
	}
	return p.through(u).String(), nil
}

func (p *Pooler) through(direct *url.URL) *url.URL {
	u := *direct
	u.Host = p.address
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return &u
}

// Close ends it and what is open through it. The error says if it had ended by itself.
func (p *Pooler) Close() error {
	var err error
	if p.process != nil {
		select {
		case <-p.process.exited:
			said, _ := os.ReadFile(p.log())
			err = fmt.Errorf("devpg: pooler: it has ended: %v\n%s", p.process.err, said)
		default:
		}
	}
	if p.front != nil {
		p.front.close()
	}
	p.halt()
	return errors.Join(err, p.dir.remove())
}

func (p *Pooler) log() string { return filepath.Join(p.dir.path, "log") }

// halt kills: it has nothing to keep.
func (p *Pooler) halt() {
	if p.process == nil {
		return
	}
	p.process.kill()
	<-p.process.exited
	p.process = nil
}
