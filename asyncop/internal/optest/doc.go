// Package optest tests an operator step by step. Tests feed elements to a [Rig], complete
// its calls in any order, and compare a text of the calls and outputs, such as "a#1@0s
// b#1@0s a#2@1s".
//
// [ForEachMode] runs a test for both orders in a bubble of testing/synctest, where time
// is virtual and exact, and synctest.Wait returns when the operator is idle. A [CheckRig]
// is a Rig with checkpoints.
//
// The tests are in asyncop/internal/tests, in a directory for each subject.
package optest
