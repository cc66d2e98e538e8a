package show

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// The exit statuses of a command.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Command parses arguments and runs a command. It returns the exit status: [ExitOK] if
// the command has proven its result or printed its help.
func Command[C any](name string, errOut io.Writer, parse func() (C, error), run func(C) (proven bool, err error)) int {
	c, err := parse()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ExitOK
	case err != nil:
		fmt.Fprintf(errOut, "%s: %v\n", name, err)
		return ExitUsage
	}
	proven, err := run(c)
	if err != nil {
		fmt.Fprintf(errOut, "%s: %v\n", name, err)
	}
	if err != nil || !proven {
		return ExitFailed
	}
	return ExitOK
}

const maxComplaints = 10

// Complaints prints the first complaints.
func Complaints(out io.Writer, wrong []string) {
	fmt.Fprintln(out)
	for i, complaint := range wrong {
		if i == maxComplaints {
			fmt.Fprintf(out, "  … and %s more\n", Count(len(wrong)-i))
			break
		}
		fmt.Fprintf(out, "  %s\n", complaint)
	}
}
