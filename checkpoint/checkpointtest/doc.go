// Package checkpointtest helps to test pipelines with checkpoints, and your own stores,
// inputs and outputs.
//
// [NewMemoryStore], [NewSliceInput] and [NewChannelInput] are for tests of a pipeline.
// [RunStore], [RunInput] and [RunOutput] check the rules that weir relies on.
//
//	func TestMyStore(t *testing.T) {
//		checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
//			bucket := newBucket(t) // empty
//			return checkpointtest.Setup{
//				Open:   func() (checkpoint.Store, error) { return OpenMyStore(bucket) },
//				Damage: func(id uint64) error { return bucket.FlipBit(id) },
//				Fail:   bucket.FailCall, // optional, as is TakeOver for a store that several machines share
//			}
//		})
//	}
//
//	func TestMyInput(t *testing.T) {
//		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[Row] { return openMyInput(t, rows) }, nil)
//	}
//
//	func TestMyOutput(t *testing.T) {
//		checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[Row] {
//			table := newTable(t) // empty
//			return checkpointtest.Outlet[Row]{
//				Open:    func() (checkpoint.Output[Row], error) { return OpenMyOutput(table) },
//				Visible: func() ([]Row, error) { return table.Rows() },
//			}
//		}, func(i int) Row { return Row{Key: strconv.Itoa(i)} }, nil)
//	}
//
// Run them with -race. A suite cannot kill your process or cut its power.
package checkpointtest
