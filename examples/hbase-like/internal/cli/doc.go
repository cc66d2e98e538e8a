// Package cli has the example's flags and summary.
package cli
