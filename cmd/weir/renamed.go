package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// renamed also accepts a flag's old name, with a warning and without help. Pflag's own
// warning would go to standard output, where scripts read JSON.
func (a *app) renamed(c *cobra.Command, old, name string) {
	f := c.Flags().Lookup(name)
	c.Flags().AddFlag(&pflag.Flag{
		Name: old, Usage: f.Usage, DefValue: f.DefValue, NoOptDefVal: f.NoOptDefVal, Hidden: true,
		Value: &renamedValue{Value: f.Value, warn: func() { a.note("weir: --%s is now --%s", old, name) }},
	})
}

type renamedValue struct {
	pflag.Value
	warn func()
}

// Set implements pflag.Value.
func (v *renamedValue) Set(s string) error {
	v.warn()
	return v.Value.Set(s)
}
