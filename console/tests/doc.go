// Package tests drives the console as a browser does, on each engine that needs no
// server. It is a module of its own, for the engines and the browser.
package tests
