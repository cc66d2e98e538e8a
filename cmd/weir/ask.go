package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
)

// errNo is the end of a command whose question was not answered with yes.
var errNo = errors.New("the answer was not yes: nothing was changed")

// ask asks before something is changed. It returns nil for yes.
func (a *app) ask(yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.in) {
		return usagef("%s Standard input is no terminal: answer with -yes", question)
	}
	fmt.Fprint(a.err, question, " [y/N] ")
	line, err := bufio.NewReader(a.in).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return nil
	case err != nil: // the end of the input, in the line of the question
		fmt.Fprintln(a.err)
	}
	return errNo
}

// messages returns "1 message" or "n messages".
func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}
