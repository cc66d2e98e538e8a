// Package checkpointtest holds the conformance suite for stores of checkpoints: the rules that pipelines rely on, for
// weir's own stores and for yours.
//
//	func TestMyStore(t *testing.T) {
//		checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Place {
//			bucket := newBucket(t) // empty
//			return checkpointtest.Place{
//				Open:   func() (checkpoint.Store, error) { return OpenMyStore(bucket) },
//				Damage: func(id uint64) error { return bucket.FlipBit(id) },
//			}
//		})
//	}
//
// Run it with -race: some rules are about calls from many goroutines. What the suite cannot do is to kill your process or
// cut its power.
package checkpointtest
