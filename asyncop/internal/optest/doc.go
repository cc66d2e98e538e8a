// Package optest drives an operator by hand. Tests feed elements to a [Rig], complete calls in an order of their choice, and compare
// what happened as a text, such as "a#1@0s b#1@0s a#2@1s" for calls.
//
// [ForEachMode] runs a test for both orders, in a bubble of testing/synctest: time is virtual and exact there, and synctest.Wait
// returns when the operator has nothing left to do. A [CheckRig] is a Rig with checkpoints.
//
// Tests of the operator lie in asyncop/internal/tests, in a directory for each subject.
package optest
