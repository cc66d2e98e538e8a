// Package cli contains the user interface of the example: flags and their checks, and the
// summary.
package cli
