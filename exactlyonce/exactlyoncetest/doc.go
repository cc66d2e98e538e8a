// Package exactlyoncetest has the conformance suite of durable records: [RunStore] checks
// exactlyonce.Store.
//
//	func TestMyStore(t *testing.T) {
//		exactlyoncetest.RunStore(t, func(t *testing.T, c clock.Clock) exactlyoncetest.Setup[*sql.Tx] {
//			…
//		})
//	}
//
// Run it with -race. The suite cannot kill your process or your database.
package exactlyoncetest
