package main

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) commands() *cobra.Command {
	root := group("weir", "Look into the database of programs that use weir",
		a.dead(), a.layers(), a.hold(), a.release(), a.due(), a.cancelKey(), a.jobs(), a.log(), a.workers(), a.queue(), a.key(), a.backend(), a.top(), a.ui(), a.outbox(), a.keys(), a.requests(),
		a.generate())
	root.Long = `Look into the database of programs that use weir, and help when something
lies there.

The database is a URL, in --db or in the environment variable WEIR_DB:

  sqlite:orders.db    sqlite:///var/lib/orders.db
  postgres://user:password@host/database
  nats://user:password@host,host/STREAM    tls://host/STREAM?creds=FILE
      parameters: locks (a bucket); creds, nkey (files of NATS);
      ca, cert, key (files for TLS)
  kafka://user:password@host,host?sasl=scram-sha-512
      parameters: sasl (scram-sha-256, scram-sha-512, or plain, which needs TLS
      or plaintext=true); tls (true), ca, cert, key; group (of the workers:
      layers shows its topics). A queue is a topic.

Tables fit the terminal, or COLUMNS; a pipe gets everything. Times are UTC,
which is the Z at their end. Before weir removes or moves anything it asks.
Exit status: 0 all is well, 1 it failed or the answer was no, 2 wrong usage.`
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = version()
	root.SetFlagErrorFunc(flagError)
	wrapped(root)
	root.PersistentFlags().StringVar(&a.url, "db", "", "the database: `URL` (default: the environment's WEIR_DB)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "write JSON, one object a line")
	root.PersistentPreRun = func(*cobra.Command, []string) {
		a.begun = true
		if a.url == "" {
			a.url = a.env("WEIR_DB")
		}
	}
	return root
}

// version returns the version of the command's module.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// group returns a command with subcommands, which prints its help without one.
func group(use, short string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, b := range below {
				names = append(names, b.Name())
				for _, deeper := range b.Commands() {
					if deeper.Name() == args[0] {
						return usagef("%s has no command %q: did you mean %s?", named(c), args[0], named(deeper))
					}
				}
			}
			return usagef("%s has no command %q%s", named(c), args[0], meant("", args[0], names))
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(below...)
	return c
}
