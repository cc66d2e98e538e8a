// Package lincheck checks that the Results of exactlyonce/server are linearizable: that attempts which run at the same time, with changes
// of drivers, find what they would find one after the other. It has tests only, in a module of its own for the checker.
package lincheck
