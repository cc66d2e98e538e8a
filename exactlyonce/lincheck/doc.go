// Package lincheck checks that the Results of exactlyonce/server are linearizable, with
// concurrent attempts and changes of drivers. It has only tests, in its own module
// because of the checker.
package lincheck
