// Package exactlyoncetest has the conformance suite of durable records: [RunStore] checks
// the promises of exactlyonce.Store.
//
//	func TestMyStore(t *testing.T) {
//		exactlyoncetest.RunStore(t, func(t *testing.T, c clock.Clock) exactlyoncetest.Setup[*sql.Tx] {
//			…
//		})
//	}
//
// Run it with -race: some rules are about transactions of many goroutines. A suite cannot
// kill your process or your database.
package exactlyoncetest
