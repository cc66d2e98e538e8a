package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// errNo ends a command whose question was not answered with yes.
var errNo = errors.New("the answer was not yes: the database is unchanged")

// ask asks for confirmation and returns nil for yes. Ctrl-C ends the question.
func (a *app) ask(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.in) {
		return usagef("%s Standard input is no terminal: answer with --yes", question)
	}
	fmt.Fprint(a.err, question, " [y/N] ")
	type answered struct {
		line string
		err  error
	}
	answers := make(chan answered, 1) // the reader cannot be cancelled, so it may outlive ask
	go func() {
		line, err := bufio.NewReader(a.in).ReadString('\n')
		answers <- answered{line, err}
	}()
	var line string
	var err error
	select {
	case got := <-answers:
		line, err = got.line, got.err
	case <-ctx.Done():
		fmt.Fprintln(a.err)
		return errors.New("interrupted: the database is unchanged")
	}
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return nil
	case err != nil: // end of input within a line
		fmt.Fprintln(a.err)
	}
	return errNo
}

func messages(n int) string { return counts(n, "message", "messages") }

// counts returns a number with its noun, such as "2 workers read".
func counts(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
