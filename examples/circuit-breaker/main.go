// Command circuit-breaker sends payments to a bank that breaks down for a while, past a circuit breaker of failsafe-go. A
// payment must not be sent twice if the first one may have taken effect; one that the breaker kept from being sent may. See
// README.md.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "circuit-breaker:", err)
		os.Exit(1)
	}
}
