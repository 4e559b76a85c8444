// Command outbox shows an outbox and acts on it: in a terminal, or in scripts with -json.
//
//	go install github.com/txoutbox/outbox/cmd/outbox@latest
//	outbox help
//
// https://github.com/txoutbox/outbox/blob/main/docs/tools/command-line.md shows it by task.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/schemaname"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second ctrl-C kills the process
	a := &app{in: os.Stdin, err: os.Stderr, out: output{w: os.Stdout}}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// app is one run of the command.
type app struct {
	in  io.Reader
	err io.Writer
	out output

	// Flags of all commands.
	url     string
	schema  string
	actor   string
	timeout time.Duration
	yes     bool // of commands that ask

	parsed bool          // the arguments are valid
	db     *sql.DB       // nil before open
	client *admin.Client // of db
}

// run is main without the process: it returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(doubleDashes(root, args))
	root.SetContext(ctx)
	err := root.ExecuteContext(ctx)
	if a.db != nil {
		_ = a.db.Close()
	}
	if err == nil {
		return exitOK
	}
	if !a.parsed {
		err = usage("%w; see outbox help", err)
	}
	if text := a.explain(ctx, err); text != "" {
		fmt.Fprintf(a.err, "outbox: %s\n", clean(text))
	}
	return exitCode(err)
}

const help = `outbox shows an outbox on PostgreSQL and acts on it.

The connection string is that of --database-url, else of OUTBOX_DATABASE_URL, else of libpq's
environment: PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD, PGSSLMODE and the like, PGSERVICE with
~/.pg_service.conf or PGSERVICEFILE, and ~/.pgpass or PGPASSFILE. --database-url service=NAME names
a service too; the system's service file is not read. Without sslmode the connection needs TLS.

Flags have one dash or two. With -json a command prints one JSON object: times are RFC 3339 in UTC
or null, durations are seconds. Payloads, headers and keys are printed with -payload only. Control
characters in names and errors are escaped.

Each change is recorded with its actor in the table outbox.audit; see outbox audit.

Exit codes: 0 done; 1 failed, interrupted or declined; 2 the arguments are wrong, or -yes is
missing; 3 nothing was found or matched; 4 doctor found warnings or worse (1: nothing worse than
info, but a check was not possible).`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "outbox", Short: "show an outbox and act on it", Long: help,
		Example: "  export OUTBOX_DATABASE_URL='postgres://ops@db.example.com/shop?sslmode=verify-full'\n" +
			"  outbox stats\n  outbox dead list -type SEND_MAIL -json",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.timeout < 0 {
				return usage("--timeout %v: use a duration like 30s, or 0 for no limit", a.timeout)
			}
			a.parsed = true
			return nil
		},
	}
	group(root, a.statsCommand(), a.typesCommand(), a.pauseCommand(), a.resumeCommand(),
		a.schedulesCommand(), a.relaysCommand(), a.auditCommand(), a.tasksCommand(), a.historyCommand(),
		a.enqueueCommand(), a.deadCommand(), a.topCommand(), a.tailCommand(), a.doctorCommand(), a.repairCommand(),
		a.reindexCommand(), a.adoptCommand(), a.migrateCommand(), a.rolesCommand(), a.versionCommand(),
		a.serveCommand())
	root.SetOut(a.out.w)
	root.SetErr(a.err)
	f := root.PersistentFlags()
	f.StringVar(&a.url, "database-url", "",
		"connection string: a postgres:// URL or key=value pairs, as lib/pq takes them")
	f.StringVar(&a.schema, "schema", schemaname.Default, "PostgreSQL schema of the outbox")
	f.StringVar(&a.actor, "actor", "", "the actor for the audit log (default: user@host of this machine)")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "the limit of one transaction; 0 is none")
	f.BoolVar(&a.out.json, "json", false, "print JSON")
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
		}
	}
	return root
}

// helpCommand is like cobra's, but an unknown command is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			about, rest, _ := root.Find(args)
			if len(rest) > 0 {
				return usage("%s: there is no command %q; see %[1]s -help", about.CommandPath(), rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// group makes c a command that only has subcommands: it is an error without one of them.
func group(c *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	c.AddCommand(subcommands...)
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if c.Parent() == nil && len(args) == 0 {
			return c.Help()
		}
		if len(args) > 0 {
			return usage("%s: there is no command %q; see %[1]s -help", c.CommandPath(), args[0])
		}
		return usage("%s: a command is missing; see %[1]s -help", c.CommandPath())
	}
	return c
}

// doubleDashes makes --name of -name if that is a flag, as the flags of Go's tools have one dash.
func doubleDashes(root *cobra.Command, args []string) []string {
	known := map[string]bool{"help": true}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		add := func(f *pflag.Flag) { known[f.Name] = true }
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	out := append([]string{}, args...)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && len(name) > 1 && known[name] {
			out[i] = "-" + arg
		}
	}
	return out
}

// asExit is an error with an exit code of its own.
type asExit struct {
	code int
	err  error
}

func (e asExit) Error() string { return e.err.Error() }
func (e asExit) Unwrap() error { return e.err }

// The exit codes, as in the help.
const (
	exitOK = iota
	exitFailed
	exitUsage
	exitNotFound
	exitFindings
)

func exitCode(err error) int {
	var e asExit
	if errors.As(err, &e) {
		return e.code
	}
	if errors.Is(err, outbox.ErrInvalidOption) || errors.Is(err, outbox.ErrInvalidType) {
		return exitUsage
	}
	return exitFailed
}

func usage(format string, args ...any) error { return asExit{exitUsage, fmt.Errorf(format, args...)} }
func notFound(format string, args ...any) error {
	return asExit{exitNotFound, fmt.Errorf(format, args...)}
}
