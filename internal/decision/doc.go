// Package decision decides whether an attempt is retried: see Steps.Decide. Package
// strategies makes Steps.
//
// Laws, such as A5, are in section 3 of DESIGN.md.
package decision
