// Package decision decides whether an attempt is retried: see Steps.Decide. Package
// strategies makes the Steps of a policy.
//
// Comments name laws, such as A5. DESIGN.md lists them in section 3.
package decision
