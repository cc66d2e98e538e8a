package call

// Wrapper is an operator's function around another function, perhaps of other types.
// Optional interfaces are looked for in the inner function, too.
type Wrapper interface{ Unwrap() any }
