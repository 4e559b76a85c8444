package main

import (
	"fmt"
	"os/exec"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// A scheduled task is made due, and its payload looked at; the audit log says that it was.
func Example() {
	url, drop := pgtest.ExampleDatabase()
	defer drop()
	for _, line := range []string{
		"migrate up | cut -d: -f1",
		`enqueue SEND_MAIL '{"to": "ada@example.com"}' -after 2h`,
		"tasks run-now 1",
		"tasks show 1 -payload | grep -E '^(state|payload)'",
		"audit -json | grep -c entry_id",
	} {
		fmt.Println("$ outbox " + line)
		c := exec.Command("bash", "-c", `"$outbox" `+line+" 2>&1")
		c.Env = environment(url, "outbox="+binary)
		out, _ := c.CombinedOutput()
		fmt.Printf("%s", out)
	}
	// Output:
	// $ outbox migrate up | cut -d: -f1
	// schema outbox
	// $ outbox enqueue SEND_MAIL '{"to": "ada@example.com"}' -after 2h
	// task 1: created
	// $ outbox tasks run-now 1
	// task 1: due
	// $ outbox tasks show 1 -payload | grep -E '^(state|payload)'
	// state     ready
	// payload   {"to": "ada@example.com"}
	// $ outbox audit -json | grep -c entry_id
	// 3
}
