// Package exactlyoncetest contains the conformance suite of durable records: [RunStore]
// checks the promises of exactlyonce.Store.
//
//	func TestMyStore(t *testing.T) {
//		exactlyoncetest.RunStore(t, func(t *testing.T, c clock.Clock) exactlyoncetest.Setup[*sql.Tx] {
//			…
//		})
//	}
//
// Run it with -race, because some rules are about concurrent transactions. The suite
// cannot kill your process or your database.
package exactlyoncetest
