package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const helpWidth = 80

// wrapped makes all help fit a terminal.
func wrapped(root *cobra.Command) {
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
}

// flagError rewords the error of a flag.
func flagError(c *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := "-" + e.GetSpecifiedName()
		if short := e.GetSpecifiedShortnames(); short != "" {
			if '0' <= short[0] && short[0] <= '9' {
				return usagef("%s: -%s is a negative number: it must be 0 or more (-h for help)", named(c), short)
			}
			name, _, _ = strings.Cut(short, "=") // -quue counts as several letters, and q is the first
		}
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		return usagef("%s has no flag -%s%s", named(c), name, meant("--", strings.TrimPrefix(name, "-"), names))
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return usagef("--%s needs a value", e.GetSpecifiedName())
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		kinds := map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false"}
		kind := kinds[e.GetFlag().Value.Type()]
		if kind == "" {
			return usagef("--%s %q: %v", e.GetFlag().Name, e.GetValue(), errors.Unwrap(e))
		}
		return usagef("--%s %q: it must be %s", e.GetFlag().Name, e.GetValue(), kind)
	}
	return usagef("%v", err)
}

// meant suggests a similar name, or refers to the help.
func meant(prefix, name string, names []string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 1 + min(1, len(name)/4)} // cobra finds similar names of commands
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: strings.ReplaceAll(n, " ", "\u00a0"), Run: func(*cobra.Command, []string) {}})
	}
	similar := all.SuggestionsFor(name)
	if len(similar) == 0 {
		return " (-h for help)"
	}
	for i := range similar {
		similar[i] = prefix + strings.ReplaceAll(similar[i], "\u00a0", " ")
	}
	return ": did you mean " + strings.Join(similar, " or ") + "?"
}

func named(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), "weir ") }

func none(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, such as %q (-h for help)", named(c), args[0])
	}
	return nil
}

// one accepts one argument, named name in errors.
func one(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("%s needs one %s, and has %d (-h for help)", named(c), name, len(args))
		}
		return nil
	}
}
