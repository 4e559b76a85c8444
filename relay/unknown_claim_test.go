package relay_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// cable is a TCP proxy before a server. Cutting it ends the clients' connections, while the server notices nothing: what
// it was asked, it does.
type cable struct {
	listener net.Listener
	server   string
	mu       sync.Mutex
	clients  []net.Conn
	servers  []net.Conn
}

// cabled is a pool on the same database whose connections go through a cable.
func (db *database) cabled(t *testing.T) (*database, *cable) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{server: u.Host}
	if c.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			client, err := c.listener.Accept()
			if err != nil {
				return
			}
			done.Go(func() { c.connect(client) })
		}
	})
	t.Cleanup(func() {
		_ = c.listener.Close()
		c.mu.Lock()
		for _, conn := range append(c.clients, c.servers...) {
			_ = conn.Close()
		}
		c.mu.Unlock()
		done.Wait()
	})
	u.Host = c.listener.Addr().String()
	return open(t, u.String()), c
}

func (c *cable) connect(client net.Conn) {
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		_ = client.Close()
		return
	}
	c.mu.Lock()
	c.clients, c.servers = append(c.clients, client), append(c.servers, server)
	c.mu.Unlock()
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	_, _ = io.Copy(server, client) // the server's side stays open
}

// connections is how many there are that were not cut.
func (c *cable) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.clients)
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.clients {
		_ = client.Close()
	}
	c.clients = nil
}

// F2: the commit of a claim succeeds after the relay has lost sight of it. Its lease would last as long as its relay, which
// has no handler for it.
func testLeaseCommittedUnseen(t *testing.T) {
	for name, terminate := range map[string]bool{"committed": false, "rolled back": true} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
				CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON outbox.task DEFERRABLE INITIALLY DEFERRED
				  FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION wait()`)
			open := hold(t, db, `SELECT pg_advisory_xact_lock(1)`)
			// A task that is known to the relay, and one that is a suspect.
			const tasks = 4
			db.Enqueue(t, "LEASED", tasks)
			db.Do(t, `UPDATE outbox.task SET relay_id = '00000000-0000-4000-8000-000000000000', attempt = 1 WHERE task_id = 2`)
			far, cable := db.cabled(t)
			run(t, far, leased(leasedEffect, handlers.Timeout(-1)), relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond})
			const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`
			eventually(t, 10*time.Second, "a claim is being committed", func() bool { return db.Int(t, waiting) == 1 })
			cable.cut()
			if terminate {
				db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`)
			} else {
				const alive = `SELECT (extract(epoch FROM alive_until) * 1000)::bigint FROM outbox.relay`
				before := db.Int(t, alive)
				eventually(t, 20*time.Second, "the relay works again", func() bool { return cable.connections() >= 2 && db.Int(t, alive) > before })
				if db.Int(t, waiting) != 1 {
					t.Error("the commit has ended already: the test shows nothing")
				}
			}
			open()
			db.Emptied(t, 15*time.Second)
			db.OnceEach(t, tasks)
			db.want(t, "1 2 1 1", "done in attempts", `SELECT string_agg(attempt::text, ' ' ORDER BY task_id) FROM effect`)
		})
	}
}
