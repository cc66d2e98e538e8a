package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/benbjohnson/clock"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, clock: clock.New()}
	status := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(status)
}

type app struct {
	in       *os.File
	out, err *os.File
	env      func(string) string
	clock    clock.Clock

	// Flags of all commands.
	url  string
	json bool

	// Flags of commands that print tables.
	wide, names bool

	frame *strings.Builder // output of top, or nil to print to out

	create bool // create missing tables, for imports

	begun bool // flags and arguments were parsed
}

type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func (a *app) run(ctx context.Context, args []string) int {
	root := a.commands()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	// An error may contain stored text.
	fmt.Fprintln(a.err, "weir:", escaped(oneLine(withoutSecrets(err.Error(), append(args, a.url)...))))
	if _, usage := errors.AsType[*usageError](err); usage || !a.begun {
		return exitUsage
	}
	return exitFailed
}

// note prints a remark that is not output.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.err, format+"\n", args...)
}

func (a *app) print(text string) error {
	if a.frame != nil {
		a.frame.WriteString(text)
		return nil
	}
	_, err := a.out.WriteString(text)
	return err
}
