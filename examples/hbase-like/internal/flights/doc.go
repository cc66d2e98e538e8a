// Package flights reads flights and airports from CSV, and writes flights with their
// airports as CSV or JSON lines.
//
// Columns are found by their header names, and other columns are ignored. Errors have the
// file and the line.
package flights
