package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// offer completes the first argument, or a flag, by the names in a list of the client.
func offer[T any](a *app, read func(*admin.Client, context.Context) ([]T, error), name func(T) string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
		defer cancel()
		found, err := get(ctx, a, read)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, one := range found {
			if clean(name(one)) == name(one) { // a shell cannot take control characters
				names = append(names, name(one))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeTypes() cobra.CompletionFunc {
	return offer(a, (*admin.Client).Types, func(t admin.Type) string { return t.Type })
}

// typeFlag adds --type, with its completion.
func (a *app) typeFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "type", "", "of this task type")
	_ = c.RegisterFlagCompletionFunc("type", a.completeTypes())
}

// choiceFlag adds a flag that takes one of some words.
func choiceFlag(c *cobra.Command, value *string, name, standard, about string, choices []string) {
	c.Flags().StringVar(value, name, standard, about)
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}
