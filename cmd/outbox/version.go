package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/schema"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the versions of this command and of its schema", Args: cobra.NoArgs,
		Example: "  outbox version -json",
		RunE: func(c *cobra.Command, _ []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
				version = info.Main.Version
			}
			return a.out.print(object{{"version", version}, {"schema_version", schema.Version()}, {"go", runtime.Version()}},
				fmt.Sprintf("outbox %s, schema version %d, %s", version, schema.Version(), runtime.Version()))
		},
	}
}
