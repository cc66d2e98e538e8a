// Package flights reads flights and airports from CSV, and writes flights with their
// airports as CSV or JSON lines.
//
// Flights may come from anywhere: columns are found by the names in the header, others
// are ignored, and whatever is wrong is an [InputError] that names file and line.
package flights
