// Package cli is what a person sees of the example: flags and their checks, the progress
// while it runs, and the summary.
package cli
