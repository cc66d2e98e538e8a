package call

// Wrapper is a function of an operator around another function, which may have other
// types. The operator and the packages around it look for optional interfaces in the
// function that is returned, too.
type Wrapper interface{ Unwrap() any }
