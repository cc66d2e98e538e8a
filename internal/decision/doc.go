// Package decision decides whether an attempt is retried: see [Steps.Decide]. Package
// strategies makes [Steps].
//
// A function may make several requests and join their errors: see [EachError]. A server
// may demand a wait before the retry, or forbid the retry: see [PushbackOf].
//
// Laws, such as A5, are in section 3 of DESIGN.md.
package decision
