// Package lincheck checks that the Results of exactlyonce/server are linearizable:
// concurrent attempts, with changes of drivers, get the same results as some sequential
// order of them. It has only tests, in a module of its own because of the checker.
package lincheck
