// Package flights reads flights and airports from CSV, and writes flights with their
// airports as CSV or JSON lines.
//
// The input can come from any program: columns are found by their header names, other
// columns are ignored, and every error has the file and the line.
package flights
